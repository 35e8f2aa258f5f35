"""Every ranker's choices for a problem, and their quality once all of them are timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polysci.cost import Context, metrics
from polysci.cost.shortlist import Choice, choices, cost_of
from polysci.errors import PolysciError
from polysci.measure.bench import Bench
from polysci.measure.trials import build_trials, time_trials
from polysci.ops.problem import Problem
from polysci.runtime.backend import Backend
from polysci.space.schedule import Schedule

BATCH = 4  # schedules compiled and tried together


@dataclass(frozen=True, slots=True)
class Ranking:
    """The first choices of a ranker, best first; or the error in ``fault``."""

    ranker: str
    choices: tuple[Choice, ...] = ()
    fault: PolysciError | None = None


@dataclass(frozen=True, slots=True)
class RankerScore:
    """The quality of a ranker's order on ``schedules`` timed ones, its own and the others'.

    ``first`` and ``few``: the shortest time of all over that of its first choice, and over that of
    the best of its choices; ``tau`` and ``pairs``: ``tau`` and ``pair_accuracy`` of rank.metrics.
    """

    ranker: str
    schedules: int
    first: float
    few: float
    tau: float
    pairs: float


def ranking(context: Context, ranker: str, count: int) -> Ranking:
    """The first ``count`` schedules of a ranker; an error becomes its ``fault``."""
    try:
        return Ranking(ranker, tuple(choices(context, count, ranker=ranker)))
    except PolysciError as error:
        return Ranking(ranker, fault=error)


def distinct(rankings: Sequence[Ranking]) -> list[Schedule]:
    """All chosen schedules, each once: every ranker's first choice, then the second ones, ..."""
    most = max((len(ranking.choices) for ranking in rankings), default=0)
    turns = (
        ranking.choices[at]
        for at in range(most)
        for ranking in rankings
        if at < len(ranking.choices)
    )
    return list(dict.fromkeys(choice.schedule for choice in turns))


def measure_choices(
    problem: Problem,
    schedules: Sequence[Schedule],
    threads: int = 1,
    backend: Backend | None = None,
) -> Iterator[tuple[Schedule, float | PolysciError]]:
    """Each schedule's shortest seconds a call, caches warm; or the error that it causes."""
    with Bench(problem, threads, backend=backend) as bench:
        for at in range(0, len(schedules), BATCH):
            batch = schedules[at : at + BATCH]
            built = build_trials(problem, batch, threads, backend=backend)
            for trial, samples in time_trials(bench, built):
                if isinstance(samples, PolysciError):
                    yield trial.schedule, samples
                else:
                    yield trial.schedule, min(samples.seconds)


def score(
    context: Context, ranking: Ranking, seconds: Mapping[Schedule, float]
) -> RankerScore | None:
    """A ranker's score; None without two measured times, or where none of its choices has one."""
    own = [choice.schedule for choice in ranking.choices if choice.schedule in seconds]
    every = list(dict.fromkeys([*own, *seconds]))
    if not own or len(every) < 2:
        return None
    places = np.arange(len(every), dtype=np.float64)
    costs = np.array([cost_of(context, schedule, ranking.ranker) for schedule in every])
    times = np.array([seconds[schedule] for schedule in every])
    return RankerScore(
        ranking.ranker,
        len(every),
        metrics.best_of_top(places, times),
        metrics.best_of_top(places, times, len(own)),
        metrics.tau(costs, times),
        metrics.pair_accuracy(costs, times),
    )
