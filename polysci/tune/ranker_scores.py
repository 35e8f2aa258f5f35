"""What every ranker chooses for a problem, and how good each choice is once all were timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polysci.errors import PolysciError
from polysci.measure.bench import Bench
from polysci.measure.trials import build_trials, time_trials
from polysci.ops.problem import Problem
from polysci.polyhedral.schedule import Schedule
from polysci.rank import Context, metrics
from polysci.rank.shortlist import Choice, choices, cost_of

BATCH = 4  # schedules compiled and tried together


@dataclass(frozen=True, slots=True)
class Ranking:
    """The first choices of a ranker, best first; or the error that there are none."""

    ranker: str
    choices: tuple[Choice, ...] = ()
    fault: PolysciError | None = None


@dataclass(frozen=True, slots=True)
class RankerScore:
    """How good a ranker's order is on ``schedules`` timed ones, its own and those of the others.

    ``first`` and ``few``: the least time of all over that of its first, and of the best of its
    own; ``tau`` and ``pairs`` as in ``quality``, over all of them.
    """

    ranker: str
    schedules: int
    first: float
    few: float
    tau: float
    pairs: float


def ranking(context: Context, ranker: str, count: int) -> Ranking:
    """The ``count`` schedules that a ranker would have measured; errors become its ``fault``."""
    try:
        return Ranking(ranker, tuple(choices(context, count, ranker=ranker)))
    except PolysciError as error:
        return Ranking(ranker, fault=error)


def distinct(rankings: Sequence[Ranking]) -> list[Schedule]:
    """All schedules that were chosen, each once; every ranker's first before anybody's second."""
    most = max((len(one.choices) for one in rankings), default=0)
    turns = (one.choices[at] for at in range(most) for one in rankings if at < len(one.choices))
    return list(dict.fromkeys(choice.schedule for choice in turns))


def measure_choices(
    problem: Problem, schedules: Sequence[Schedule], threads: int = 1
) -> Iterator[tuple[Schedule, float | PolysciError]]:
    """Each schedule's least seconds a call, warm; or why it cannot be built, run or trusted."""
    with Bench(problem, threads) as bench:
        for at in range(0, len(schedules), BATCH):
            for one, found in time_trials(
                bench, build_trials(problem, schedules[at : at + BATCH], threads)
            ):
                yield one.schedule, found if isinstance(found, PolysciError) else min(found)


def score(
    context: Context, ranking: Ranking, seconds: Mapping[Schedule, float]
) -> RankerScore | None:
    """A ranker against two measured times or more; None where none of its own choices has one."""
    own = [one.schedule for one in ranking.choices if one.schedule in seconds]
    every = list(dict.fromkeys([*own, *seconds]))
    if not own or len(every) < 2:
        return None
    places = np.arange(len(every), dtype=np.float64)
    costs = np.array([cost_of(context, plan, ranking.ranker) for plan in every])
    times = np.array([seconds[plan] for plan in every])
    return RankerScore(
        ranking.ranker,
        len(every),
        metrics.best_of_top(places, times),
        metrics.best_of_top(places, times, len(own)),
        metrics.tau(costs, times),
        metrics.pair_accuracy(costs, times),
    )
