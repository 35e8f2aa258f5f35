"""Inputs whose results are exact in any order of summation, and the results bit for bit."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci.lower.algorithm import ExactInputs
from polysci.numerics.dtypes import Precision, precision_named, to_stored
from polysci.numerics.quantization import Scales
from polysci.ops.problem import Problem, bias_shape, input_shapes

Array = NDArray[Any]
Floats = NDArray[np.float32]

_EXACT: Final = 1 << 24  # f32 holds every integer up to here
_LARGEST: Final = 4
SPREAD: Final = 7  # patterns from one filter to the next
_SUMS: Final = (1 << 31) - (1 << 17)  # room for the bias and the offset of a sum


def largest_value(problem: Problem) -> int:
    """The largest absolute value of the inputs such that f32 holds every partial sum exactly."""
    fits = (a for a in range(_LARGEST, 1, -1) if problem.terms * a * a + 2 * a < _EXACT)
    return next(fits, 1)


@dataclass(frozen=True, slots=True)
class Arrays:
    """Inputs of a problem, in its layout, with its results: plain, and clamp(y + bias + residual).

    ``inputs`` are x, w, bias, residual (like y) and clamp (lo, hi), as they lie in memory.
    ``x_zero`` is what whole x hold for zero; ``scales`` belong to scaled results.
    """

    inputs: dict[str, Array]
    plain: Array
    fused: Array
    x_zero: int | None = None
    scales: Scales | None = None

    @classmethod
    def of(cls, problem: Problem, seed: int, exact: ExactInputs | None = None) -> "Arrays":
        """Reproducible: integers, small ones for floating point; the clamp cuts a third.

        ``exact`` are those that an algorithm computes without rounding.
        """
        precision, random = precision_named(problem.dtype), np.random.default_rng(seed)
        exact = exact or ExactInputs()
        if precision.integer:
            return _whole(problem, precision, random)
        top = exact.largest or largest_value(problem)
        dense = problem.dense
        reals = {
            name: random.integers(-top, top + 1, shape, np.int8).astype(np.float32)
            for name, shape in input_shapes(dense).items()
        }
        if precision.w.rounds_x:  # in steps of 1
            reals["x"][..., :: precision.w.block] = 127
        reals["w"] = exact_weights(reals["w"], exact)
        sums = np.asarray(dense.reference(reals["x"], reals["w"]), np.float32)
        fused = np.asarray(
            dense.reference(reals["x"], reals["w"], reals["bias"], reals["residual"]), np.float32
        )
        limit = max(1.0, float(np.rint(np.std(fused))))
        clamp = np.array([-limit, limit + 1], np.float32)
        types = {"x": precision.x, "w": precision.w, "bias": precision.sum, "residual": precision.y}
        inputs = {name: to_stored(reals[name], dtype) for name, dtype in types.items()}
        with np.errstate(over="ignore"):  # what f16 cannot hold is infinite, here and there
            plain = to_stored(sums, precision.y)
        return cls(inputs | {"clamp": clamp}, plain, to_stored(np.clip(fused, *clamp), precision.y))

    def fault(self, variant: str, result: Array) -> str | None:
        """Return how ``result`` differs from the ``plain`` or ``fused`` one, or None."""
        return difference(result, self.fused if variant == "fused" else self.plain)

    def worst(self, variant: str, result: Array) -> float:
        """Return the share of the error bound that was used: nothing is rounded."""
        return float(self.fault(variant, result) is not None)


def exact_weights(w: Floats, exact: ExactInputs) -> Floats:
    """``w`` times the scale, zero but for some channels of each filter.

    ``w`` has filters and channels as its first axes where channels are limited; every channel
    serves some filter.
    """
    if exact.patterns:
        w = _filters(w, exact)
    if not exact.channels:
        return np.asarray(exact.scale * w, np.float32)
    filters, channels = w.shape[:2]
    at = (np.arange(channels)[None, :] - exact.channels * np.arange(filters)[:, None]) % channels
    kept = (at < exact.channels).reshape(filters, channels, *[1] * (w.ndim - 2))
    return np.asarray(exact.scale * w * kept, np.float32)


def _filters(w: Floats, exact: ExactInputs) -> Floats:
    """Return filters of patterns, by the signs of the first taps of ``w``."""
    (filters, channels, *taps), every = w.shape, np.array(exact.filters(w.shape[2:]), np.float32)
    number = np.add.outer(SPREAD * np.arange(filters), np.arange(channels)) % len(every)
    signs = np.sign(w.reshape(filters, channels, -1)[..., :1])
    return np.asarray((signs * every[number]).reshape(filters, channels, *taps), np.float32)


def _whole(problem: Problem, precision: Precision, random: np.random.Generator) -> Arrays:
    """Over the whole range of the types, extremes included, with zero points and scales."""
    shapes = input_shapes(problem)
    x, residual = (_any(random, shapes[name], precision.x if name == "x" else precision.y)
                   for name in ("x", "residual"))  # fmt: skip
    top = min(127, _SUMS // (problem.terms * 255 * 2))
    w = random.integers(-top - (top == 127), top + 1, shapes["w"]).astype(precision.w.numpy)
    limits = np.iinfo(precision.x.numpy)
    x_zero = int(random.integers(limits.min, limits.max + 1))
    bias = random.integers(-1000, 1001, shapes["bias"]).astype(np.int32)
    along = bias_shape(problem)
    # float64 holds every sum exactly, and its matrix product is fast.
    sums = np.asarray(problem.reference(x.astype(np.float64) - x_zero, w.astype(np.float64)))
    added = sums + bias.reshape(along)
    inputs = {"x": x, "w": w, "bias": bias, "residual": residual}
    spread = max(1.0, float(np.std(added)))
    if not precision.scaled:
        clamp = np.array([-np.rint(spread), 2 * np.rint(spread)], np.float32)
        fused = np.clip(added + residual, *clamp.astype(np.float64)).astype(np.int32)
        return Arrays(inputs | {"clamp": clamp}, sums.astype(np.int32), fused, x_zero)
    scales = Scales(
        (random.random(shapes["bias"]) + 0.5) * 80 / spread,
        y_zero=int(random.integers(0, 100)), residual_scale=0.3, residual_zero=7,
    )  # fmt: skip
    clamp = np.array([-60, 90.5], np.float32)
    return Arrays(
        inputs | {"clamp": clamp},
        scales.result(sums, along, precision.y),
        scales.result(added, along, precision.y, residual, (clamp[0], clamp[1])),
        x_zero,
        scales,
    )


def _any(random: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Values of the whole range of an 8-bit type; of s32 small ones."""
    limits = np.iinfo(dtype.numpy) if dtype.bytes == 1 else np.iinfo(np.int16)
    return random.integers(limits.min, limits.max + 1, shape).astype(dtype.numpy)


def difference(result: Array, expected: Array) -> str | None:
    """Return how many elements of two arrays differ, the first one's index and values; or None."""
    wrong = result != expected  # NaN differs from everything
    if not wrong.any():
        return None
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    index = ", ".join(str(int(i)) for i in first)
    return (
        f"{np.count_nonzero(wrong)} of {wrong.size} elements differ, the first at [{index}]: "
        f"expected {expected[first].item()!r}, got {result[first].item()!r}"
    )
