"""Runners, which build, check and time the schedules of a search, here or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol, Self

from polysci.cost import Context
from polysci.errors import CheckError, PolysciError, UnsupportedError
from polysci.measure.bench import Bench, Candidate, CandidateError
from polysci.measure.samples import Sample, Samples
from polysci.measure.trials import BuiltSchedule, build_trials, time_trials
from polysci.ops.problem import Problem
from polysci.runtime.backends import backend_of
from polysci.space.schedule import Schedule
from polysci.target.target import HOST
from polysci.tune.probes import build_reference, peak_text, peak_units, reference_kernel


class FaultyScheduleError(CheckError):
    """A schedule whose code was right before crashed, looped or was wrong while it was timed."""

    def __init__(self, schedule: Schedule, reason: str) -> None:
        self.schedule = schedule
        super().__init__(reason)


class TrialRunner(Protocol):
    """Builds, checks and times schedules of one problem, from ``__enter__`` to ``__exit__``.

    ``compiler`` identifies what compiles them, ``width`` is how many are timed at the same time.
    ``resumable``: times are recorded as they come, and are not taken again.
    """

    @property
    def resumable(self) -> bool: ...

    @property
    def compiler(self) -> str: ...

    @property
    def width(self) -> int: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def try_all(
        self, schedules: Sequence[Schedule]
    ) -> Iterator[tuple[Schedule, Samples | PolysciError]]:
        """A few samples of each, or why there are none; checked before they are timed."""
        ...

    def compare(
        self, schedules: Sequence[Schedule], *, samples: int, eliminate: bool = False
    ) -> list[Samples]:
        """Samples taken in turns, as ``Bench.time`` does; FaultyScheduleError names one to drop."""
        ...

    def peak(self) -> Sample:
        """Seconds a flop of one core's multiplications, measured now. Raises PolysciError."""
        ...


MakeRunner = Callable[[Problem, Context], TrialRunner]


class LocalRunner:
    """Runs trials on this machine, in a worker process of its own.

    ``usual`` is what the reference loop does a second at the least, by default at calibration.
    """

    resumable = False

    def __init__(self, problem: Problem, context: Context, usual: float | None = None) -> None:
        self.problem, self.context = problem, context
        self.usual = usual_rate(context) if usual is None else usual
        self._loop: Candidate | None = None
        backend = backend_of(context.target)
        self.compiler = backend.compiler  # its absence is no fault of a candidate
        self.width = 1
        self._bench = Bench(problem, context.threads, backend=backend)
        self._built: dict[Schedule, BuiltSchedule] = {}

    def __enter__(self) -> Self:
        """Have a loop of known work run around every sample, if it can be built."""
        if self._bench.backend.name != HOST:  # the loop is C
            return self
        with suppress(PolysciError):
            self._loop = build_reference(self.context.target, self.context.threads)
            self._bench.watch(*self._loop, self.usual)
        return self

    def __exit__(self, *error: object) -> None:
        self._bench.close()

    def try_all(
        self, schedules: Sequence[Schedule]
    ) -> Iterator[tuple[Schedule, Samples | PolysciError]]:
        """Compiled several at a time; then all are checked, then timed."""
        bench = self._bench
        built = build_trials(
            self.problem, schedules, self.context.threads, backend=bench.backend,
            jobs=max(2, self.context.target.cores), meanwhile=bench.prepare,
        )  # fmt: skip
        for trial, samples in time_trials(bench, built):
            if isinstance(samples, Samples):
                self._built[trial.schedule] = trial
            yield trial.schedule, samples

    def compare(
        self, schedules: Sequence[Schedule], *, samples: int, eliminate: bool = False
    ) -> list[Samples]:
        """Samples taken in turns."""
        self._build_missing(schedules)
        objects = [self._built[schedule].candidate for schedule in schedules]
        try:
            return self._bench.time(objects, samples=samples, eliminate=eliminate)
        except CandidateError as error:
            guilty = schedules[objects.index(error.candidate)]
            raise FaultyScheduleError(guilty, str(error)) from error

    def _build_missing(self, schedules: Sequence[Schedule]) -> None:
        """Build and check the schedules that no other process has tried."""
        missing = [schedule for schedule in schedules if schedule not in self._built]
        for schedule, samples in self.try_all(missing) if missing else ():
            if isinstance(samples, PolysciError):
                raise FaultyScheduleError(schedule, str(samples)) from samples

    def peak(self) -> Sample:
        """Return a sample of the loop that reaches the FMA peak of these types, which is C."""
        if self._bench.backend.name != HOST:
            raise UnsupportedError(f"{self._bench.backend.name}: no loop reaches its peak")
        isa = self.context.target.isa.name
        unit = peak_units(isa, self.context.contraction.multiplied)[self.context.compute]
        return self._bench.peak(
            self._bench.backend.build(peak_text(unit), symbols=("peak",)), "peak"
        )

    def reference_rate(self) -> float:
        """Return the rate of the reference loop now, in 1e9 operations; 0 without it."""
        return 1e-9 / self._bench.peak(*self._loop).seconds if self._loop else 0.0


def usual_rate(context: Context) -> float:
    """Return the rate of the reference loop at the calibration, lowered by a margin."""
    target, machine = context.target, context.machine
    efficiency = machine.efficiency.get(str(reference_kernel(target.isa.name)), 0.0)
    return (
        machine.coefficient("usual_rate") * efficiency * machine.of_threads(context.threads) * 1e9
    )
