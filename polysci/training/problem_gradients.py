"""The problems that compute the gradients of a problem's operands, from them and dL/dy."""

from __future__ import annotations

from polysci.errors import UnsupportedError
from polysci.numerics.dtypes import precision_named
from polysci.ops.backward_data import Conv1dBackwardData, Conv2dBackwardData, Conv3dBackwardData
from polysci.ops.backward_weights import (
    Conv1dBackwardWeights,
    Conv2dBackwardWeights,
    Conv3dBackwardWeights,
)
from polysci.ops.conv2d.convolution import Convolution
from polysci.ops.conv_transpose2d import ConvTranspose2d
from polysci.ops.matmul import Matmul
from polysci.ops.problem import Problem

_OF_INPUT = (Conv1dBackwardData, Conv2dBackwardData, Conv3dBackwardData)
_OF_FILTERS = (Conv1dBackwardWeights, Conv2dBackwardWeights, Conv3dBackwardWeights)
Gradient = tuple[Problem, str, str]  # a problem, and which of x, w and dy are its factors


def gradients_of_problem(problem: Problem) -> dict[str, Gradient]:
    """Return the problem and factors of the gradient of each operand, x and w.

    Raises UnsupportedError for integers, an activation, and other problems.
    """
    if precision_named(problem.dtype).integer or problem.activation:
        raise UnsupportedError(f"{problem}: gradients are of real sums without an activation")
    if isinstance(problem, Matmul):
        return _of_matmul(problem)
    if isinstance(problem, ConvTranspose2d):
        own = {"x": problem.gradient("bwd_d"), "w": problem.gradient("bwd_w")}
        return {"x": (own["x"], "dy", "w"), "w": (own["w"], "dy", "x")}
    if not isinstance(problem, Convolution):
        raise UnsupportedError(f"{problem}: expected a convolution, ConvTranspose2d or Matmul")
    data, filters = (
        next(row(problem) for row in rows if row.FORWARD is type(problem))
        for rows in (_OF_INPUT, _OF_FILTERS)
    )
    return {"x": (data, "dy", "w"), "w": (filters, "x", "dy")}


def _of_matmul(product: Matmul) -> dict[str, Gradient]:
    """``dA = dO B'`` and ``dB = A' dO``, stored as A and B are."""
    turned = product.transposed

    def factors(a: bool, b: bool, o: bool) -> str:
        return "a" * a + "b" * b + "o" * o

    m, k, n, flat = product.M, product.K, product.N, product.with_(constant="", beta=1.0)
    of_a = flat.with_(
        M=m, K=n, N=k, transposed=factors("o" in turned, "b" not in turned, "a" in turned)
    )
    of_b = flat.with_(
        M=k, K=m, N=n, transposed=factors("a" not in turned, "o" in turned, "b" in turned)
    )
    a, b = ("w", "x") if product.w_is_a else ("x", "w")
    return {a: _with_factors(of_a, "dy", b), b: _with_factors(of_b, a, "dy")}


def _with_factors(product: Matmul, a: str, b: str) -> Gradient:
    return (product, b, a) if product.w_is_a else (product, a, b)
