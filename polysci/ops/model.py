"""A problem as the polyhedral model sees it, through its textbook nest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from polysci.errors import SpecError
from polysci.numerics.dtypes import computes, precision_named
from polysci.ops.problem import Problem, row_strides
from polysci.ops.textbook import scop_of
from polysci.polyhedral.contraction import Contraction, contraction, run_along_storage
from polysci.polyhedral.scop import Scop


@lru_cache(maxsize=256)
def model_of(problem: Problem) -> tuple[Scop, Contraction, Mapping[str, tuple[int, ...]]]:
    """Return scop, GEMM roles and storage strides of a problem.

    Raises SpecError where there are no images.
    """
    if not problem.x_shape[0]:
        raise SpecError(f"{problem}: N=0: without images there are no loops; expected N >= 1")
    scop = scop_of(problem.nest())
    strides = {name: strides for name, (_, strides) in problem.arrays().items()}
    precision = precision_named(problem.dtype)
    roles = contraction(scop).with_precision(precision)
    (alpha, beta), packs_b = problem.factors, problem.w_kind == "activation" or _is_vector(roles)
    roles = replace(
        roles, activation=problem.activation, alpha=alpha, beta=beta, packs_b=packs_b,
        bias_axis=_bias_axis(problem, roles.out.shape, strides[roles.out.array]),
    )  # fmt: skip
    # What is widened by a copy is not: no copy of x has its rows as runs.
    if computes(precision.x.name, "brgemm") == ("f32",):
        roles = run_along_storage(roles, strides[roles.a.array])
    return scop, roles, strides


def _bias_axis(problem: Problem, shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The axis of the nest's result that a bias runs along: that of its extent and its stride."""
    axis, stored = problem.bias_axis, problem.y_shape
    axes = list(zip(shape, strides, strict=True))
    return axes.index((stored[axis], row_strides(stored)[axis]))


def _is_vector(roles: Contraction) -> bool:
    """Return whether B is one column, of which panels would be mostly zeros."""
    return (
        roles.b.dtype == "f32"
        and not roles.padded
        and not any(dim.extent > 1 for dim in roles.dims if dim.role in ("n", "br", "batch"))
    )
