"""Candidates built, checked and timed in batches; the fastest few compared again in turns.

The schedules to measure next are chosen by the model and by what was measured. The model's errors
are those of kinds: it prices packing, or blocks of rows, too low or too high on some machine. So
log(measured / predicted) is a sum of terms, one for each property of a schedule, each of them
normal around 0; measured schedules make terms known (Bayesian linear regression: Bishop, Pattern
Recognition and Machine Learning, 2006, section 3.3). Next comes the schedule that may be fastest:
the lowest bound of its corrected time (GP-UCB: Srinivas and others, Gaussian Process Optimization
in the Bandit Setting, ICML 2010). Kinds that nothing is known of come early, if the model does not
call them much slower; then the best kind is refined.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf, log
from typing import Any, Final

import numpy as np

from polysci.cost import Context
from polysci.errors import BuildError, CheckError, PolysciError
from polysci.lower import choice
from polysci.lower.algorithm import Candidate
from polysci.lower.registry import algorithm_of
from polysci.measure.samples import LEAST_SAMPLES, Samples, is_worse, samples_of
from polysci.ops.problem import Problem
from polysci.polyhedral.tile_schedule import Loop
from polysci.runtime.measurement import Measurement, is_disturbed, protocol
from polysci.runtime.source import Source, emit
from polysci.space import directives
from polysci.space.schedule import Schedule
from polysci.target.machine import Machine
from polysci.target.microkernels import find
from polysci.target.target import HOST
from polysci.tune.records import SearchRecords
from polysci.tune.result import Progress, SearchLevel, Trial
from polysci.tune.runner import FaultyScheduleError, LocalRunner, MakeRunner, TrialRunner

# Policies of a search: what it tolerates, and how much it times.
TIE = 0.01  # of the median: within it the schedule that the model prefers wins
BATCH = 4  # candidates built and tried together
NOT_RUN = "not run: the search ended"
REPEATS = 3  # of what is suspected, until it was quiet
REPEATED = 12  # candidates at most, the best: all of them are in memory together
MOST_NEAR = 6  # finalists beyond those that a level asks for
HELD_BACK = 1.2  # times as long by other work, at most, that no sample shows
PAUSE_S = 0.1  # before a repeat: a scheduler's slice and more
_log = logging.getLogger(__name__)
# Policies of the choice of what to measure next.
NOISE: Final = 0.02  # standard deviation of the logarithm of one measurement, as is tolerated
OPTIMISM: Final = 1.0  # standard deviations below the corrected time that a bound lies

COMMON: Final = "every schedule"


Winner = tuple[Trial, Source, Measurement]  # that a search takes


@dataclass(slots=True)
class Trials:
    """The trials of one search, by schedule text; ``interrupted`` by Ctrl-C after the first."""

    problem: Problem
    context: Context
    level: SearchLevel
    start: float
    time_limit: float | None
    progress: Callable[[Progress], None]
    records: SearchRecords
    make_runner: MakeRunner = LocalRunner
    again: bool = False  # recorded times do not count
    compiler: str = ""
    times: Mapping[str, float] = field(default_factory=dict)  # that a run before this one took
    trials: dict[str, Trial] = field(default_factory=dict)
    samples: dict[str, Samples] = field(default_factory=dict)
    interrupted: bool = False
    keep: Callable[[Trial], None] = lambda trial: None  # what is told of each that was tried

    def run(self, attempt: Callable[[TrialRunner], None]) -> Winner:
        """Let ``attempt`` try candidates; then time the best ones together.

        Raises CheckError where none survives, BuildError where none can be compiled.
        """
        with self.make_runner(self.problem, self.context) as runner:
            self.compiler = runner.compiler
            if runner.resumable and not self.again:
                self.times = self.records.times(runner.compiler)
            try:
                attempt(runner)
                self._try_other_form(runner)
                self._repeat_doubtful(runner)
                samples = self._compare_best(runner)
            except KeyboardInterrupt:
                if self.best is None:
                    raise
                self.interrupted = True
                samples = {}
            return self._winner(runner, samples or self._first_samples())

    @property
    def late(self) -> bool:
        """Return whether the time limit has passed."""
        spent = time.monotonic() - self.start
        return self.time_limit is not None and spent > self.time_limit

    @property
    def best(self) -> float | None:
        """The least seconds until now."""
        return min((t.seconds for t in self.trials.values() if t.seconds), default=None)

    def tell(self, stage: str, done: int, total: int) -> None:
        """Report progress, with the fastest until now."""
        times = [(t.seconds, str(t.schedule)) for t in self.trials.values() if t.seconds]
        seconds, name = min(times, default=(None, ""))
        schedule = self.trials[name].schedule if name else None
        self.progress(Progress(stage, done, total, seconds, schedule))

    def note(self, trial: Trial) -> None:
        """Keep what is known of a candidate."""
        self.trials[str(trial.schedule)] = trial

    def try_all(
        self,
        runner: TrialRunner,
        candidates: Sequence[Candidate],
        first: int = 0,
        most: int | None = None,
    ) -> None:
        """Build, check and time candidates in batches until time is up and one was measured.

        The ``first`` ones come first, ``most`` of them in all (None: all of them, in their order).
        """
        began = time.monotonic()
        untried, total = list(candidates), min(most or len(candidates), len(candidates))
        leading, limit = first if most else len(candidates), self.level.seconds
        limit = inf if runner.resumable else limit  # elsewhere, other searches take their turns
        size = BATCH if most else BATCH * runner.width
        for at in range(0, total, size):
            best = self.best
            if best and (self.late or time.monotonic() - began > limit):
                return
            self.tell("measuring", at, total)
            count = min(size, total - at)
            batch, untried = untried[: min(leading, count)], untried[min(leading, count) :]
            leading -= len(batch)
            chosen = self.choose(untried, count - len(batch))
            untried = [candidate for candidate in untried if candidate not in chosen]
            self.try_likely(runner, batch + chosen)
            if at == 0:  # the references of a large layer take nothing of the level's time
                began = time.monotonic()

    def choose(self, untried: Sequence[Candidate], count: int) -> list[Candidate]:
        """Return the candidates to measure next, by what was measured."""
        tried = self.trials.values()
        if not (count and untried):
            return []
        return choose_next(tried, untried, count, self.context.machine)

    def _try_other_form(self, runner: TrialRunner) -> None:
        """The fastest schedule with prefetches of weights that exceed L2, or without them."""
        alive = [trial for trial in self.trials.values() if trial.seconds is not None]
        if self.late or not alive:
            return
        schedule = min(alive, key=lambda trial: (trial.seconds, str(trial.schedule))).schedule
        other = choice.other_form(self.problem, self.context, schedule)
        if other is not None and str(other) not in self.trials:
            seconds = choice.predict_seconds(self.problem, self.context, other)
            self._try(runner, [Candidate(other, seconds)])

    def try_likely(self, runner: TrialRunner, candidates: Sequence[Candidate]) -> None:
        """Build, check and time those that may win; of the others it is noted that they cannot."""
        if batch := [candidate for candidate in candidates if self._may_win(candidate)]:
            self._try(runner, batch)

    def _try(self, runner: TrialRunner, batch: Sequence[Candidate]) -> None:
        predicted = {candidate.schedule: candidate.seconds for candidate in batch}
        first, refusals = not self.trials, list[BuildError]()
        todo = list[Schedule]()
        for schedule, seconds in predicted.items():
            self.note(Trial(schedule, seconds, fault=NOT_RUN))
            if known := self.times.get(str(schedule)):
                self._take(Trial(schedule, seconds), samples_of([known] * LEAST_SAMPLES))
                self.keep(self.trials[str(schedule)])
            else:
                todo.append(schedule)
        for schedule, samples in runner.try_all(todo) if todo else ():
            trial = Trial(schedule, predicted[schedule])
            if isinstance(samples, Samples):
                self._take(trial, samples)
                self.keep(self.trials[str(schedule)])
                if runner.resumable and not is_disturbed(samples.dropped, samples.speed):
                    self.records.keep_times({str(schedule): min(samples.seconds)}, self.compiler)
                continue
            if isinstance(samples, CheckError):
                _log.warning("%s: %s fell out: %s", self.problem, schedule, samples)
            if isinstance(samples, BuildError):
                refusals.append(samples)
            self.note(replace(trial, fault=str(samples)))
            self.keep(self.trials[str(schedule)])
        if first and len(refusals) == len(batch):
            raise refusals[0]

    def _take(self, trial: Trial, samples: Samples) -> None:
        self.samples[str(trial.schedule)] = samples
        self.note(replace(trial, seconds=min(samples.seconds)))

    def _repeat_doubtful(self, runner: TrialRunner) -> None:
        """Time again what was never quiet, and every kind that the model calls much faster.

        Where all parallel, or all serial, schedules take ``doubtful_time`` times their predicted
        seconds, something else had the machine, until a quiet repeat says the same.
        """
        for _ in range(REPEATS):
            names = self._doubtful()
            if not names or self.late:
                return
            time.sleep(PAUSE_S)
            self.tell("repeating", 0, len(names))
            for name, samples in self._time(runner, names, samples=5).items():
                if min(samples.seconds) < min(self.samples[name].seconds) or not _noisy(samples):
                    self._take(self.trials[name], samples)

    def _time(
        self, runner: TrialRunner, names: Sequence[str], **options: Any
    ) -> dict[str, Samples]:
        """Samples taken in turns; empty where a candidate fails, which then has fallen out."""
        schedules = [self.trials[name].schedule for name in names]
        try:
            return dict(zip(names, runner.compare(schedules, **options), strict=True))
        except FaultyScheduleError as error:  # the others are still there
            guilty = self.trials[str(error.schedule)]
            self.note(replace(guilty, seconds=None, fault=str(error)))
            return {}

    def _doubtful(self) -> list[str]:
        names = {name for name, samples in self.samples.items() if _noisy(samples)}
        doubtful = self.context.machine.coefficient("doubtful_time")
        for parallel in (True, False):
            kind = [
                name for name in self.samples
                if bool(self.trials[name].schedule.parallel) is parallel
            ]  # fmt: skip
            slow = all(
                min(self.samples[name].seconds) > doubtful * self.trials[name].predicted
                for name in kind
            )
            if slow and any(self.samples[name].dropped for name in kind):
                names |= {*kind}
        alive = [name for name in names if self.trials[name].seconds is not None]
        return sorted(alive, key=lambda name: (self.trials[name].predicted, name))[:REPEATED]

    def _may_win(self, candidate: Candidate) -> bool:
        """False for what cannot, or not by much, by a bound that is no prediction."""
        best, schedule = self.best, candidate.schedule
        if best is None:
            return True
        bound = self.least_seconds(schedule)
        near = self.level.near * bound > best
        if near:
            predicted = choice.predict_seconds(self.problem, self.context, schedule)
            fault = f"not run: it takes {bound:.3g} s at the least"
            self.note(Trial(schedule, predicted, fault=fault))
        return not near

    def least_seconds(self, schedule: Schedule) -> float:
        """Return the model's lower bound; 0 on a device, which may exceed the rates assumed."""
        if self.context.target.backend != HOST:
            return 0.0
        return algorithm_of(schedule).lower_bound(self.context, schedule)

    def _compare_best(self, runner: TrialRunner) -> dict[str, Samples]:
        """Samples of the fastest few, taken in turns; the beaten ones get fewer.

        All that other work may have held back while it was tried are among them.
        """
        while True:
            names = finalists(self.trials.values(), self.level.finalists)
            self.tell("comparing", 0, 1)
            timed = self._time(runner, names, samples=11, eliminate=True)
            if timed or not names:
                return timed

    def _first_samples(self) -> dict[str, Samples]:
        """Return the first time of every trial. Raises CheckError where there is none."""
        samples: dict[str, Samples]
        samples = {
            name: samples_of([trial.seconds])
            for name, trial in self.trials.items()
            if trial.seconds is not None
        }
        if not samples:
            tried = [trial for trial in self.trials.values() if trial.fault != NOT_RUN]
            if not tried:
                raise CheckError(f"{self.problem}: time was up before anything was measured")
            faults = "; ".join(f"{trial.schedule}: {trial.fault}" for trial in tried)
            raise CheckError(f"{self.problem}: no candidate survived: {faults}")
        return samples

    def _winner(self, runner: TrialRunner, samples: Mapping[str, Samples]) -> Winner:
        """The fastest; the model's preference among those that are not slower beyond the spread."""
        median = {name: its.median for name, its in samples.items()}
        best = samples[min(median, key=lambda name: median[name])]
        near = [
            name for name, its in samples.items()
            if its.median <= best.median * (1 + TIE) or not is_worse(its, best)
        ]  # fmt: skip
        name = min(near, key=lambda name: (self.trials[name].predicted, name))
        chosen = samples[name]
        peak, busy = (None, False) if self.interrupted else self._peak(runner)
        measurement = Measurement(
            chosen.seconds, self.problem.flops, name, protocol(len(chosen.seconds)),
            self.context.threads, self.records.host, peak, chosen.dropped, chosen.speed,
            self.problem.multiplied_flops, busy,
        )  # fmt: skip
        for other, seconds in median.items():
            self.note(replace(self.trials[other], seconds=seconds, fault=""))
        trial = self.trials[name]
        source = emit(self.problem, trial.schedule, self.context.threads)
        return trial, source, measurement

    def _peak(self, runner: TrialRunner) -> tuple[float | None, bool]:
        """Peak of one core for these types, now or when it was calibrated, times the threads.

        The higher one: a busy neighbour can take half of either, and nothing adds to it. Then,
        whether other work disturbed it now. None where it was never measured.
        """
        peak, disturbed = self.context.measured_peak or 0.0, False
        with suppress(PolysciError):
            now = runner.peak()
            peak, disturbed = max(peak, 1e-9 / now.seconds), now.disturbed
        return peak * self.context.threads or None, disturbed


def finalists(trials: Iterable[Trial], least: int) -> list[str]:
    """The schedules to compare: the fastest ``least``, and all that other work may have held back.

    Those were tried at other times than the fastest one, and took little longer.
    """
    times = sorted(
        (trial.seconds, str(trial.schedule)) for trial in trials if trial.seconds is not None
    )
    near = [seconds < HELD_BACK * times[0][0] for seconds, _ in times]
    return [name for _, name in times[: max(least, min(sum(near), MOST_NEAR))]]


def _noisy(samples: Samples) -> bool:
    """Return whether too few samples are clean for the others to be left out."""
    return len(samples.clean) < LEAST_SAMPLES


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
    nest = (part.dim if isinstance(part, Loop) else type(part).__name__ for part in schedule.nest)
    yield f"order {' '.join(nest)}"
    yield from (f"blocks of {dim}" for dim in dict.fromkeys(dims) if dims.count(dim) > 1)
    yield from (f"parallel {loop.dim}" for loop in schedule.parallel)


def choose_next(
    tried: Iterable[Trial], untried: Sequence[Candidate], count: int, machine: Machine
) -> list[Candidate]:
    """The ``count`` candidates to measure next, each as if those before it were measured already.

    Ties go to the first one.
    """
    measured = [trial for trial in tried if trial.seconds]
    schedules = [trial.schedule for trial in measured]
    schedules += [candidate.schedule for candidate in untried]
    names = dict.fromkeys(name for schedule in schedules for name in properties(schedule))
    columns = {name: at for at, name in enumerate(names)}
    rows = np.array([_row(trial.schedule, columns) for trial in measured])
    rows = rows.reshape(-1, len(columns))
    errors = np.array([log((trial.seconds or inf) / trial.predicted) for trial in measured])
    common, own = map(machine.coefficient, ("common_error", "property_error"))
    spread = np.array([common if name == COMMON else own for name in columns])
    covariance = np.linalg.inv(np.diag(spread**-2.0) + rows.T @ rows / NOISE**2)
    terms = covariance @ rows.T @ errors / NOISE**2
    left = np.array([_row(candidate.schedule, columns) for candidate in untried])
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


def _row(schedule: Schedule, columns: dict[str, int]) -> np.ndarray:
    row = np.zeros(len(columns))
    row[[columns[name] for name in properties(schedule)]] = 1.0
    return row


def _once_known(covariance: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The covariance of the terms once a schedule with these properties is measured."""
    gain = covariance @ row
    known: np.ndarray = covariance - np.outer(gain, gain) / (row @ gain + NOISE**2)
    return known
