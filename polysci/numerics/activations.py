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
from polysci.text.suggestions import suggest


@dataclass(frozen=True, slots=True)
class ActivationFunction:
    """One function: ``values`` of float64, and what the bound of a result needs.

    ``slope`` is the largest absolute value of its derivative; an error of the sum grows no more.
    ``error`` bounds that of the C function of its name in ``microkernels/functions*.h``, relative
    to ``max(|x|, 1)``; the header says how it was found.
    """

    values: Callable[[Any], Any]
    slope: float
    error: float

    def bound(self, x: Doubles, error: Doubles) -> Doubles:
        """How far a result may be where the sum is ``x`` within ``error``."""
        bound: Doubles = self.slope * error + self.error * np.maximum(abs(x) + error, 1.0)
        return bound


def _gelu(x: Any) -> Any:
    from scipy.special import erf  # costs 100 ms, and parsing needs none of it

    return x / 2 * (1 + erf(x / np.sqrt(2.0)))


def _sigmoid(x: Any) -> Any:
    return 0.5 + 0.5 * np.tanh(x / 2)


def _softplus(x: Any) -> Any:
    return np.logaddexp(x, 0.0)


_ULP = 2.0**-23
_NEAR = 1.2e-7  # of functions that multiply by x
ACTIVATIONS: Mapping[str, ActivationFunction] = MappingProxyType(
    {
        "relu": ActivationFunction(lambda x: np.maximum(x, 0.0), 1.0, 0.0),
        "gelu": ActivationFunction(_gelu, 1.13, _NEAR),
        "gelu_tanh": ActivationFunction(
            lambda x: x * _sigmoid(np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)), 1.13, _NEAR
        ),
        "sigmoid": ActivationFunction(_sigmoid, 0.25, 2.5 * _ULP),
        "tanh": ActivationFunction(np.tanh, 1.0, 1.4 * _ULP),
        "silu": ActivationFunction(lambda x: x * _sigmoid(x), 1.1, _NEAR),
        "hard_swish": ActivationFunction(
            lambda x: x * np.clip(x / 6 + 0.5, 0.0, 1.0), 1.5, 2 * _ULP
        ),
        "softplus": ActivationFunction(_softplus, 1.0, 3 * _ULP),
        "mish": ActivationFunction(lambda x: x * np.tanh(_softplus(x)), 1.1, 2 * _ULP),
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
