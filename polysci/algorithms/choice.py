"""Direct or Winograd: which algorithms a search may choose, in one order by predicted seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Final

from polysci.algorithms.winograd.cost import estimate
from polysci.algorithms.winograd.plan import resolve
from polysci.algorithms.winograd.rules import convolution, refusal
from polysci.algorithms.winograd.space import rank_schedules
from polysci.errors import SpecError
from polysci.ops.problem import Problem
from polysci.polyhedral.schedule import Schedule
from polysci.rank import Context, shortlist
from polysci.rank.shortlist import choices, rank_all

ALGORITHMS: Final = ("direct", "auto", "winograd")
LEAST: Final = 2  # of each algorithm that auto measures, however they are predicted


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule and its predicted seconds."""

    schedule: Schedule
    seconds: float


def resolve_algorithm(problem: Problem, algorithm: str) -> str:
    """The algorithm to search with: auto is direct where Winograd does not apply.

    Raises SpecError for a name that does not exist, UnsupportedError for winograd of a problem that
    has no transform.
    """
    if algorithm not in ALGORITHMS:
        raise SpecError(f"algorithm {algorithm!r}: expected one of {', '.join(ALGORITHMS)}")
    if algorithm == "winograd":
        convolution(problem)
    return "direct" if algorithm == "auto" and refusal(problem) else algorithm


def key_of(problem: Problem, algorithm: str) -> str:
    """Under which records of a search are kept: those of direct searches hold direct schedules."""
    chosen = resolve_algorithm(problem, algorithm)
    return problem.key if chosen == "direct" else f"{problem.key} {chosen}"


def candidates(
    problem: Problem,
    context: Context,
    count: int | None,
    algorithm: str = "direct",
    *,
    ranker: str = "traffic",
    tiles: int = 8,
    blocks: int = 2,
) -> list[Candidate]:
    """The best ``count`` schedules of an algorithm (None: all); with auto, of both in one order.

    Raises as ``choices`` and ``resolve_algorithm`` do.
    """
    chosen = resolve_algorithm(problem, algorithm)
    direct, other = list[Candidate](), list[Candidate]()
    if chosen != "winograd":
        space = {"tiles": tiles, "blocks": blocks}
        ranked = (
            rank_all(context, ranker=ranker, **space) if count is None
            else choices(context, count, ranker=ranker, **space)
        )  # fmt: skip
        direct = [Candidate(choice.schedule, choice.seconds) for choice in ranked]
    if chosen != "direct":
        best = rank_schedules(problem, context.target, context.machine, context.threads, count)
        other = [Candidate(one.schedule, one.seconds) for one in best]
    return _merged(direct, other, count) if direct and other else direct or other


def _merged(
    direct: Sequence[Candidate], other: Sequence[Candidate], count: int | None
) -> list[Candidate]:
    """The best LEAST of each, so that whatever is measured first compares them; then the rest.

    Each keeps its ranker's order. Ties go to direct.
    """

    def merged(*ranked: Sequence[Candidate]) -> list[Candidate]:
        return list(merge(*ranked, key=lambda one: one.seconds))

    if count is None:
        return merged(direct, other)
    sure = merged(direct[:LEAST], other[:LEAST])
    return [*sure, *merged(direct[LEAST:], other[LEAST:])][:count]


def predict_seconds(problem: Problem, context: Context, plan: Schedule) -> float:
    """Predicted seconds of one schedule of either algorithm."""
    if plan.transform is None:
        return shortlist.predict_seconds(context, plan)
    return estimate(
        resolve(problem, plan, context.threads), context.target, context.machine
    ).seconds
