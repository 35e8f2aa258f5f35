"""Inputs made of small integers, for which f32 arithmetic is exact in any order of summation."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polysci.ops.problem import Problem, bias_shape, input_shapes

Floats = NDArray[np.float32]

_EXACT: Final = 1 << 24  # f32 holds every integer up to here
_LARGEST: Final = 4


def largest_value(problem: Problem) -> int:
    """The largest absolute value of the inputs such that f32 holds every partial sum exactly."""
    fits = (a for a in range(_LARGEST, 1, -1) if problem.terms * a * a + 2 * a < _EXACT)
    return next(fits, 1)


@dataclass(frozen=True, slots=True)
class Arrays:
    """Inputs of a problem, in its layout, with its results: plain, and clamp(y + bias + residual).

    ``inputs`` are x, w, bias, residual (like y) and clamp (lo, hi).
    """

    inputs: dict[str, Floats]
    plain: Floats
    fused: Floats

    @classmethod
    def of(cls, problem: Problem, seed: int) -> "Arrays":
        """Integers up to ``largest_value``; the clamp cuts about a third of the results."""
        random, top = np.random.default_rng(seed), largest_value(problem)
        inputs = {
            name: random.integers(-top, top + 1, shape, np.int8).astype(np.float32)
            for name, shape in input_shapes(problem).items()
        }
        plain = np.asarray(problem.reference(inputs["x"], inputs["w"]), np.float32)
        fused = plain + inputs["residual"] + inputs["bias"].reshape(bias_shape(problem))
        limit = max(1.0, float(np.rint(np.std(fused))))
        inputs["clamp"] = np.array([-limit, limit + 1], np.float32)
        return cls(inputs, plain, np.clip(fused, *inputs["clamp"]))

    def fault(self, variant: str, got: Floats) -> str | None:
        """How ``got`` differs from the ``plain`` or ``fused`` result, or None."""
        return difference(got, self.fused if variant == "fused" else self.plain)


def difference(got: Floats, expected: Floats) -> str | None:
    """How two arrays differ: how many elements, the first one's index and both values; or None."""
    wrong = got != expected  # NaN differs from everything
    if not wrong.any():
        return None
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    index = ", ".join(str(int(i)) for i in first)
    return (
        f"{np.count_nonzero(wrong)} of {wrong.size} elements differ, the first at [{index}]: "
        f"expected {float(expected[first])!r}, got {float(got[first])!r}"
    )
