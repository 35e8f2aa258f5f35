"""Random reals with a float64 reference and the error that no order of f32 summation exceeds."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polysci.exact import Floats
from polysci.ops.problem import Problem, bias_shape, input_shapes

UNIT: Final = 2.0**-24  # largest relative error of one f32 rounding
_REFERENCE: Final = 1 + 2.0**-28  # float64 rounds as often, with errors 2^-29 of f32's
_EPILOGUE: Final = 2  # additions: bias and residual; a clamp rounds nothing

Doubles = NDArray[np.float64]


def gamma(count: int) -> float:
    """``n u / (1 - n u)``: the relative error bound of ``count`` roundings.

    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1.
    """
    return count * UNIT / (1 - count * UNIT)


@dataclass(frozen=True, slots=True)
class Reals:
    """Inputs from (-1, 1) in the problem's layout, and what the results are compared with.

    ``inputs`` as of ``exact.Arrays``; ``sums`` is the result in float64, ``sizes`` the same of
    absolute values, ``terms`` the products in one sum, ``along`` the shape that adds a bias to y.
    """

    inputs: dict[str, Floats]
    sums: Doubles
    sizes: Doubles
    terms: int
    along: tuple[int, ...]

    @classmethod
    def of(cls, problem: Problem, seed: int) -> "Reals":
        """Reproducible inputs; the clamp cuts a part of the results."""
        random = np.random.default_rng(seed)
        inputs = {
            name: random.random(shape, np.float32) * np.float32(2) - np.float32(1)
            for name, shape in input_shapes(problem).items()
        }
        x, w = (inputs[name].astype(np.float64) for name in "xw")
        sums = problem.reference(x, w)
        limit = float(np.std(sums)) or 1.0
        inputs["clamp"] = np.array([-limit, 2 * limit], np.float32)
        sizes = problem.reference(abs(x), abs(w))
        return cls(inputs, sums, sizes, problem.terms, bias_shape(problem))

    def share(self, variant: str, got: Floats) -> Doubles:
        """Error over bound, element by element; above 1, or NaN, where the result is wrong.

        ``variant`` is ``plain`` or ``fused`` (bias, residual and clamp).
        """
        expected, sizes, count = self.sums, self.sizes, self.terms
        if variant == "fused":
            bias, residual = self.inputs["bias"].reshape(self.along), self.inputs["residual"]
            expected = np.clip(expected + bias + residual, *self.inputs["clamp"])
            sizes, count = sizes + abs(bias) + abs(residual), count + _EPILOGUE
        error, bound = abs(got - expected), gamma(count) * _REFERENCE * sizes
        return np.where(error == 0, 0.0, error / np.maximum(bound, np.finfo(np.float64).tiny))

    def fault(self, variant: str, got: Floats) -> str | None:
        """The worst element outside its bound, or None."""
        share = np.nan_to_num(self.share(variant, got), nan=np.inf)
        wrong = np.count_nonzero(share > 1)
        if not wrong:
            return None
        worst = np.unravel_index(int(np.argmax(share)), share.shape)
        index = ", ".join(str(int(i)) for i in worst)
        return (
            f"{wrong} of {share.size} elements are outside the error bound, the worst at [{index}]:"
            f" got {float(got[worst])!r}, {float(share[worst]):.3g} times the bound away"
        )

    def worst(self, variant: str, got: Floats) -> float:
        """The largest share of the bound that an error takes."""
        return float(np.max(self.share(variant, got), initial=0.0))
