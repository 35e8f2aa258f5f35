"""Functions that end a sum, by name: their values in float64, and how far those of C code are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.errors import SpecError, UnsupportedError
from polysci.numerics.arrays import Doubles
from polysci.numerics.dtypes import precision_named
from polysci.numerics.scalar_functions import FUNCTIONS
from polysci.text.names import suggest


@dataclass(frozen=True, slots=True)
class ActivationFunction:
    """A function that ends sums: ``values`` of float64, and bounds of results.

    ``slope`` and ``error`` are those of ``SumEnd``; an error of the sum grows at most by the slope.
    """

    values: Callable[[Any], Any]
    slope: float
    error: float

    def bound(self, x: Doubles, error: Doubles) -> Doubles:
        """Return how far a result may be where the sum is ``x`` within ``error``."""
        bound: Doubles = self.slope * error + self.error * np.maximum(abs(x) + error, 1.0)
        return bound


ACTIVATIONS: Mapping[str, ActivationFunction] = MappingProxyType(
    {
        name: ActivationFunction(row.numpy, row.end.slope, row.end.error)
        for name, row in FUNCTIONS.items()
        if row.end is not None and row.numpy is not None
    }
)


def check_activation(problem: str, name: str, dtype: str) -> None:
    """Raise SpecError for an unknown function, UnsupportedError beside integers."""
    if name and name not in ACTIVATIONS:
        known = f"{', '.join(ACTIVATIONS)}{suggest(name, ACTIVATIONS)}"
        raise SpecError(f"{problem}: activation={name!r} is none of {known}")
    if name and precision_named(dtype).integer:
        raise UnsupportedError(
            f"{problem}: activation={name!r} beside dtype={dtype!r}: activations end sums of reals"
        )
