"""A problem as the model sees it, and its C under a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from polysci import codegen, legality
from polysci.codegen import Source
from polysci.contraction import Contraction, contraction
from polysci.dtype import precision_named
from polysci.extract import extract
from polysci.ops.problem import Problem
from polysci.schedule import Schedule
from polysci.scop import Scop
from polysci.winograd import emit as winograd

SYMBOL = "primitive"


@lru_cache(maxsize=256)
def model_of(problem: Problem) -> tuple[Scop, Contraction, Mapping[str, tuple[int, ...]]]:
    """Scop, GEMM roles and storage strides of a problem, through its textbook nest."""
    scop = extract(problem.nest())
    strides = {name: strides for name, (_, strides) in problem.arrays().items()}
    return scop, contraction(scop).stored_as(precision_named(problem.dtype)), strides


def emit(problem: Problem, plan: Schedule, threads: int = 1, symbol: str = SYMBOL) -> Source:
    """C source of a problem under a schedule, once isl has found it legal.

    A Winograd schedule has no loops that isl could judge: its own rules decide.

    Raises IllegalScheduleError, SpecError or UnsupportedError.
    """
    if plan.transform:
        return winograd.emit(problem, plan, threads, symbol)
    scop, roles, strides = model_of(problem)
    legality.check(scop, roles, plan)
    return codegen.emit(roles, strides, plan, symbol=symbol, threads=threads)
