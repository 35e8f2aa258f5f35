"""Random reals with a float64 reference and the error that no order of summation in f32 exceeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from polysci.lower.algorithm import Algorithm
from polysci.lower.registry import DEFAULT, algorithm_named
from polysci.measure.integer_reference import Array, Arrays
from polysci.numerics.arrays import Doubles
from polysci.numerics.blocks import round_blocks
from polysci.numerics.dtypes import PRECISIONS, DType, precision_named, to_stored, values
from polysci.numerics.scalar_functions import ACTIVATIONS, apply_numpy
from polysci.ops.problem import Problem, bias_shape, input_shapes

UNIT: Final = 2.0**-24  # largest relative error of one f32 rounding
_REFERENCE: Final = 1 + 2.0**-28  # float64 rounds as often, with errors 2^-29 of f32's
# Additions of bias and residual, and the residual's factor; a clamp rounds nothing.
_EPILOGUE: Final = 4
# Largest relative error of rounding to a type, and half of its least denormal.
_ROUNDING: Final = {"f32": (0.0, 0.0), "bf16": (2.0**-8, 2.0**-134), "f16": (2.0**-11, 2.0**-25)}
_FLUSHED: Final = 2.0**-126  # a product or sum below it may count as zero (VDPBF16PS)


def without_activation(problem: Problem) -> Problem:
    """Return the problem whose results are the sums."""
    return problem.with_(activation="") if problem.activation else problem


def gamma(count: int) -> float:
    """``n u / (1 - n u)``: the relative error bound of ``count`` roundings.

    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1.
    """
    return count * UNIT / (1 - count * UNIT)


@dataclass(frozen=True, slots=True)
class Reals:
    """Inputs from (-1, 1) in the problem's layout, and what the results are compared with.

    ``inputs`` as of ``exact.Arrays``; ``sums`` is the result in float64, ``sizes`` the same of
    absolute values, ``terms`` the roundings on the way into one of them, ``along`` the shape that
    adds a bias to y, ``dtype`` the type of y, ``activation`` the function of finished sums,
    ``beta`` the residual's factor and ``rounded`` what weights in fewer bits add to the bound.
    """

    inputs: dict[str, Array]
    sums: Doubles
    sizes: Doubles
    terms: int
    along: tuple[int, ...]
    dtype: DType = PRECISIONS["f32"].y
    activation: str = ""
    beta: float = 1.0
    rounded: Doubles | float = 0.0

    @classmethod
    def of(
        cls,
        problem: Problem,
        seed: int,
        algorithm: Algorithm[Any] | None = None,
        numbers: Sequence[int] = (),
    ) -> "Reals":
        """Reproducible inputs of floating point; the clamp cuts a part of the results.

        The bound is that of ``algorithm`` (None: the default one) with the ``numbers`` of its
        transform.
        """
        random, precision = np.random.default_rng(seed), precision_named(problem.dtype)
        types = {"x": precision.x, "w": precision.w, "residual": precision.y, "bias": precision.sum}
        inputs: dict[str, Array] = {
            name: to_stored(
                random.random(shape, np.float32) * np.float32(2) - np.float32(1), types[name]
            )
            for name, shape in input_shapes(problem.dense).items()
        }
        x, w = (values(inputs[name], types[name]).astype(np.float64) for name in "xw")
        x = round_blocks(x, precision.w.block) if precision.w.rounds_x else x
        narrow, activation = without_activation(problem), problem.activation
        problem = narrow.dense
        sums = problem.reference(x, w)
        limit = float(np.std(sums)) or 1.0
        inputs["clamp"] = np.array([-limit, 2 * limit], np.float32)
        terms = (algorithm or algorithm_named(DEFAULT)).error_terms(problem, numbers, x, w)
        shape = bias_shape(problem)
        beta = problem.factors[1]
        roundings = terms.roundings + narrow.terms - problem.terms
        rounded = 0.0 if terms.rounded is None else terms.rounded
        return cls(
            inputs, sums, terms.sizes, roundings, shape, precision.y, activation, beta, rounded
        )

    @classmethod
    def of_integers(cls, problem: Problem, exact: Arrays) -> "Reals":
        """Inputs whose sums are exact: factors and the activation alone have an error."""
        precision = precision_named(problem.dtype)
        x, w = (
            values(exact.inputs[name], dtype).astype(np.float64)
            for name, dtype in (("x", precision.x), ("w", precision.w))
        )
        sums = without_activation(problem).dense.reference(x, w)
        (alpha, beta), shape = problem.factors, bias_shape(problem)
        sizes: Doubles = np.zeros_like(sums)
        if alpha != 1:
            sizes = np.absolute(sums, dtype=np.float64)
        return cls(exact.inputs, sums, sizes, 2, shape, precision.y, problem.activation, beta)

    def share(self, variant: str, result: Array) -> Doubles:
        """Error over bound, element by element; above 1, or NaN, where the result is wrong.

        ``variant`` is ``plain`` or ``fused`` (bias, residual and clamp).
        """
        expected, sizes, count = self.sums, self.sizes, self.terms
        if variant == "fused":
            bias = self.inputs["bias"].reshape(self.along)
            stored = values(self.inputs["residual"], self.dtype).astype(np.float64)
            residual = self.beta * stored
            expected = expected + bias + residual
            sizes, count = sizes + abs(bias) + abs(residual), count + _EPILOGUE
        bound = gamma(count) * _REFERENCE * sizes + _REFERENCE * self.rounded
        if self.activation:
            bound = ACTIVATIONS[self.activation].bound(expected, bound) + _FLUSHED
            expected = apply_numpy(self.activation, expected)
        if variant == "fused":
            expected = np.clip(expected, *self.inputs["clamp"])
        error = abs(values(result, self.dtype).astype(np.float64) - expected)
        if self.dtype.bytes < 4 or self.inputs["x"].dtype.itemsize < 4:
            relative, least = _ROUNDING[self.dtype.name]
            bound = bound + count * _FLUSHED
            bound = bound + relative * (abs(expected) + bound) + least
        return np.where(error == 0, 0.0, error / np.maximum(bound, np.finfo(np.float64).tiny))

    def fault(self, variant: str, result: Array) -> str | None:
        """Return the worst element outside its bound, or None."""
        share = np.nan_to_num(self.share(variant, result), nan=np.inf)
        wrong = np.count_nonzero(share > 1)
        if not wrong:
            return None
        worst = np.unravel_index(int(np.argmax(share)), share.shape)
        index = ", ".join(str(int(i)) for i in worst)
        return (
            f"{wrong} of {share.size} elements are outside the error bound, the worst at [{index}]:"
            f" got {float(values(result, self.dtype)[worst])!r}, "
            f"{float(share[worst]):.3g} times the bound away"
        )

    def worst(self, variant: str, result: Array) -> float:
        """Return the largest share of the bound that an error takes."""
        return float(np.max(self.share(variant, result), initial=0.0))
