"""From a problem under a schedule of any algorithm to its C."""

from __future__ import annotations

from functools import lru_cache

from polysci.lower.algorithm import PLAIN, EmitOptions
from polysci.lower.direct.emit import Source
from polysci.lower.registry import algorithm_of
from polysci.ops.model import scop_of
from polysci.ops.problem import Problem
from polysci.ops.textbook import nest_of
from polysci.polyhedral.contraction import Contraction
from polysci.polyhedral.scop import Scop
from polysci.space.group_views import GroupView
from polysci.space.schedule import Schedule


@lru_cache(maxsize=256)
def swapped_model_of(contraction: Contraction) -> tuple[Scop, Contraction]:
    """Scop and roles with the factors swapped: a nest over the pixels of whole images.

    Raises UnsupportedError where the roles forbid it.
    """
    roles = GroupView(swapped=True).of(contraction)
    return scop_of(nest_of(roles)), roles


def emit(
    problem: Problem, schedule: Schedule, threads: int = 1, options: EmitOptions = PLAIN
) -> Source:
    """C source of a problem under a schedule of any algorithm.

    Raises IllegalScheduleError, SpecError or UnsupportedError.
    """
    algorithm = algorithm_of(schedule)
    lowered = algorithm.lower(problem, schedule, threads)
    return algorithm.emit(lowered, options)
