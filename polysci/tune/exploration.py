"""Exploration: the schedules to measure next, by the model and by what was measured.

The model's errors are those of kinds: it prices packing, or blocks of rows, too low or too high on
some machine. So log(measured / predicted) is a sum of terms, one for each property of a schedule,
each of them normal around 0; measured schedules make terms known (Bayesian linear regression:
Bishop, Pattern Recognition and Machine Learning, 2006, section 3.3). Next comes the schedule that
may be fastest: the lowest bound of its corrected time (GP-UCB: Srinivas and others, Gaussian
Process Optimization in the Bandit Setting, ICML 2010). Kinds that nothing is known of come early,
if the model does not call them much slower; then the best kind is refined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import Final

import numpy as np

from polysci.lower.algorithm import Candidate
from polysci.polyhedral.tile_schedule import Loop
from polysci.space import directives
from polysci.space.schedule import Schedule
from polysci.target.microkernels import find

MODEL_ERROR: Final = 0.1  # standard deviation of a property's term: the model errs by so much
COMMON_ERROR: Final = 0.5  # of the term that all schedules have
NOISE: Final = 0.02  # of one measurement
OPTIMISM: Final = 1.0  # standard deviations below the corrected time that a bound lies

COMMON: Final = "every schedule"


def properties(schedule: Schedule) -> Iterator[str]:
    """Yield the properties of a schedule, and its kind: all but the loops' steps."""
    kernel = find(schedule.kernel)
    dims = [loop.dim for loop in schedule.loops]
    yield COMMON
    yield f"kernel {kernel.family} {kernel.compute}"
    yield f"columns {kernel.cols}"
    yield f"kernel {kernel}"
    yield f"transform {schedule.transform}"
    yield f"packed at {schedule.pack_depth if schedule.pack else 'no depth'}"
    yield f"packed {schedule.pack is not None}"
    yield from (f"{row.word} {schedule.has(row)}" for row in directives.DIRECTIVES)
    yield f"outermost {' '.join(dims[:1])}"
    yield f"order {' '.join(map(_without_step, schedule.nest))}"
    yield from (f"blocks of {dim}" for dim in dict.fromkeys(dims) if dims.count(dim) > 1)
    yield from (f"parallel {loop.dim}" for loop in schedule.parallel)


def _without_step(part: object) -> str:
    return part.dim if isinstance(part, Loop) else type(part).__name__


@dataclass(frozen=True, slots=True)
class Measured:
    """A candidate and the seconds that it took."""

    candidate: Candidate
    seconds: float


def choose_next(
    measured: Sequence[Measured], untried: Sequence[Candidate], count: int
) -> list[Candidate]:
    """The ``count`` candidates to measure next, each as if those before it were measured already.

    Ties go to the first one.
    """
    columns = {
        name: at
        for at, name in enumerate(
            dict.fromkeys(
                name
                for candidate in (*(trial.candidate for trial in measured), *untried)
                for name in properties(candidate.schedule)
            )
        )
    }
    rows = np.array([_row(trial.candidate, columns) for trial in measured]).reshape(
        -1, len(columns)
    )
    errors = np.array([log(trial.seconds / trial.candidate.seconds) for trial in measured])
    spread = np.array([COMMON_ERROR if name == COMMON else MODEL_ERROR for name in columns])
    covariance = np.linalg.inv(np.diag(spread**-2.0) + rows.T @ rows / NOISE**2)
    terms = covariance @ rows.T @ errors / NOISE**2
    left = np.array([_row(candidate, columns) for candidate in untried])
    corrected = np.log([candidate.seconds for candidate in untried]) + left @ terms
    chosen: list[int] = []
    while len(chosen) < min(count, len(untried)):
        variance = np.einsum("ij,jk,ik->i", left, covariance, left)
        bound = corrected - OPTIMISM * np.sqrt(np.maximum(variance, 0.0))
        bound[chosen] = np.inf
        best = int(np.argmin(bound))
        chosen.append(best)
        covariance = _once_known(covariance, left[best])
    return [untried[at] for at in chosen]


def _row(candidate: Candidate, columns: dict[str, int]) -> np.ndarray:
    row = np.zeros(len(columns))
    row[[columns[name] for name in properties(candidate.schedule)]] = 1.0
    return row


def _once_known(covariance: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The covariance of the terms once a schedule with these properties is measured."""
    gain = covariance @ row
    known: np.ndarray = covariance - np.outer(gain, gain) / (row @ gain + NOISE**2)
    return known
