"""Inputs for a peer in a precision, the expected result, and how far from it results may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci.errors import UnsupportedError
from polysci.measure.integer_reference import largest_value
from polysci.numerics.dtypes import precision_named, to_stored, values
from polysci.ops.problem import Problem, bias_shape

Floats = NDArray[np.float32]

# The largest error, in shares of the largest result: inputs are small integers, sums exact in f32.
TOLERANCE: Final[Mapping[str, float]] = MappingProxyType(
    {"f32": 1e-4, "bf16": 2.0**-8, "f16": 2.0**-10, "s32": 0.0}
)
UNIT: Final = 1.0  # 8 bits: requantisation may round to either side
_EXACT: Final = 1 << 23  # f32 holds every integer up to twice this
_SPREAD: Final = 40.0  # of the results of 8 bits, as their standard deviation


@dataclass(frozen=True, slots=True)
class ExampleInputs:
    """Input and weights in the NumPy dtypes of the precision (bf16: its bits as uint16).

    ``elements`` are the names of the element types of x, w and y; ``expected`` is the result
    rounded to the type of y, in f32. ``scale`` is None except for 8-bit elements: (K,), with
    ``y = saturate(rint(sum(x * w) * scale[k]))``.
    """

    elements: tuple[str, str, str]
    x: NDArray[Any]
    w: NDArray[Any]
    expected: Floats
    scale: Floats | None = None


def example_inputs(problem: Problem, dtype: str, seed: int) -> ExampleInputs:
    """Integers, small enough for sums to be exact in f32 in any order.

    There are no zero points: one of x costs oneDNN time. Raises SpecError for an unknown precision,
    UnsupportedError for weights in blocks.
    """
    precision = precision_named(dtype)
    if precision.w.block > 1:
        raise UnsupportedError(f"{dtype}: no peer has layers by weights in blocks")
    random, top = np.random.default_rng(seed), largest_value(problem)
    most = min(127, max(1, _EXACT // (2 * problem.terms * top))) if precision.integer else top
    low, high = (0, 2 * most) if precision.x.name == "u8" else (-most, most)
    x = random.integers(low, high + 1, problem.x_shape, np.int16)
    w = random.integers(-top, top + 1, problem.w_shape, np.int8)
    reals = np.asarray(x, np.float32), np.asarray(w, np.float32)
    sums = np.asarray(problem.reference(*reals), np.float32)
    channels = problem.y_shape[problem.bias_axis]
    scale = _scales(channels, sums) if precision.scaled else np.ones(channels, np.float32)
    sums *= scale.reshape(bias_shape(problem))
    stored = values(to_stored(sums, precision.y), precision.y)
    elements = precision.x.name, precision.w.name, precision.y.name
    arrays = (
        to_stored(x.astype(np.float32), precision.x),
        to_stored(w.astype(np.float32), precision.w),
    )
    scales = scale if precision.integer else None
    return ExampleInputs(elements, *arrays, stored.astype(np.float32), scales)


def fault(result: NDArray[Any], expected: NDArray[Any], element: str) -> str | None:
    """How results rounded to ``element`` differ by more than they may, or None."""
    largest = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    limit = TOLERANCE[element] * largest if element in TOLERANCE else UNIT
    error = float(np.max(np.abs(result - expected), initial=0.0))
    if error <= limit:
        return None
    return f"differs from the reference by {error:g}, more than {limit:g}"


def _scales(count: int, sums: Floats) -> Floats:
    """A power of two over all results times 4 to 7 quarters: products with small sums are exact."""
    spread = max(float(np.std(sums)), 1.0)
    quarters = (4 + np.arange(count, dtype=np.int32) % 4).astype(np.float32)
    return quarters * np.float32(2.0 ** np.floor(np.log2(_SPREAD / spread)) / 4)
