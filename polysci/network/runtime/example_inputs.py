"""Inputs that are made up: reals from a normal distribution, small whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysci.network.runtime.runner import TensorPort
from polysci.numerics.dtypes import array_type, to_bf16

Array = NDArray[Any]
MOST = 4  # whole numbers stay below: they may be positions in a small table


def inputs_of(ports: Sequence[TensorPort], seed: int = 0) -> dict[str, Array]:
    """An array for each input, by its name; the same seed gives the same numbers."""
    random = np.random.default_rng(seed)
    return {port.name: _one(port, random) for port in ports}


def _one(port: TensorPort, random: np.random.Generator) -> Array:
    kind = array_type(port.dtype)
    if port.dtype == "bf16":
        return to_bf16(random.standard_normal(port.shape))
    if kind.kind == "f":
        return random.standard_normal(port.shape).astype(kind)
    return random.integers(0, 2 if kind.kind == "b" else MOST, port.shape).astype(kind)
