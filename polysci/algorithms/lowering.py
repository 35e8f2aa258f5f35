"""A problem as the model sees it, and its C under a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from polysci import codegen
from polysci.algorithms.winograd import emit as winograd
from polysci.codegen import Source
from polysci.errors import UnsupportedError
from polysci.numerics.dtypes import precision_named
from polysci.ops.problem import Problem
from polysci.polyhedral import legality
from polysci.polyhedral.contraction import Contraction, contraction
from polysci.polyhedral.extract import extract
from polysci.polyhedral.schedule import Schedule
from polysci.polyhedral.scop import Scop

SYMBOL = "primitive"


@lru_cache(maxsize=256)
def model_of(problem: Problem) -> tuple[Scop, Contraction, Mapping[str, tuple[int, ...]]]:
    """Scop, GEMM roles and storage strides of a problem, through its textbook nest."""
    scop = extract(problem.nest())
    strides = {name: strides for name, (_, strides) in problem.arrays().items()}
    return scop, contraction(scop).stored_as(precision_named(problem.dtype)), strides


def emit(
    problem: Problem,
    plan: Schedule,
    threads: int = 1,
    symbol: str = SYMBOL,
    *,
    strides: Mapping[str, tuple[int, ...]] | None = None,
    joined: bool = False,
    by_rows: bool = False,
) -> Source:
    """C source of a problem under a schedule, once isl has found it legal.

    A Winograd schedule has no loops that isl could judge: its own rules decide. ``strides`` are of
    arrays that are stored otherwise than the problem says (``codegen.emit``, which also tells of
    ``joined`` and ``by_rows``).

    Raises IllegalScheduleError, SpecError or UnsupportedError.
    """
    if plan.transform:
        if by_rows:
            raise UnsupportedError(f"schedule {plan}: its outermost loop is over tiles, not rows")
        return winograd.emit(problem, plan, threads, symbol, strides=strides, joined=joined)
    scop, roles, own = model_of(problem)
    legality.check(scop, roles, plan)
    stored = {**own, **(strides or {})}
    return codegen.emit(
        roles, stored, plan, symbol=symbol, threads=threads, joined=joined, by_rows=by_rows
    )
