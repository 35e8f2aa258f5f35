"""Trials of schedules: generated, compiled several at a time, checked, and timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from polysci.errors import BuildError, CheckError, NoCompilerError, PolysciError
from polysci.loop_ir.nodes import join
from polysci.lower.algorithm import PLAIN, SYMBOL, EmitOptions
from polysci.measure.bench import Bench
from polysci.measure.samples import Samples
from polysci.ops.problem import Problem
from polysci.runtime.backend import Backend
from polysci.runtime.backends import backend_named
from polysci.runtime.source import Source, assemble, emit
from polysci.space.schedule import Schedule
from polysci.target.target import HOST

PATIENCE_S = 0.2  # for more than three samples of one candidate


@dataclass(frozen=True, slots=True)
class BuiltSchedule:
    """A schedule's C and its shared object; or the error that there is none."""

    schedule: Schedule
    source: Source | None = None
    path: Path | None = None
    error: PolysciError | None = None

    @property
    def candidate(self) -> tuple[Path, str]:
        """The library and its symbol, which a Bench takes. Only for what was built."""
        assert self.path is not None and self.source is not None
        return self.path, self.source.symbol


def build_trials(
    problem: Problem,
    schedules: Sequence[Schedule],
    threads: int = 1,
    jobs: int = 2,
    backend: Backend | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[BuiltSchedule]:
    """Return every schedule compiled, ``jobs`` compilers at a time, in the order given.

    ``meanwhile`` is what this process does while compilers run.
    """
    pairs = [(problem, schedule) for schedule in schedules]
    return build_all(pairs, threads, jobs, backend, meanwhile=meanwhile)


def build_all(
    trials: Sequence[tuple[Problem, Schedule]],
    threads: int = 1,
    jobs: int = 2,
    backend: Backend | None = None,
    share: int = 1,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[BuiltSchedule]:
    """Return the same for schedules of several problems, up to ``share`` of them in one C text.

    A compiler reads the headers once for a text, which takes longer than a schedule's own code.
    """
    backend = backend or backend_named(HOST)
    sources: dict[int, Source] = {}
    built: dict[int, BuiltSchedule] = {}
    for at, (problem, schedule) in enumerate(trials):
        options = PLAIN if share == 1 else EmitOptions(f"{SYMBOL}_{at}")
        try:
            sources[at] = emit(problem, schedule, threads, options)
        except PolysciError as error:
            built[at] = BuiltSchedule(schedule, error=error)
    for at, path in _compile(sources, share, jobs, backend, meanwhile).items():
        source, schedule = sources[at], trials[at][1]
        built[at] = (
            BuiltSchedule(schedule, source, error=path)
            if isinstance(path, BuildError)
            else BuiltSchedule(schedule, source, path)
        )
    return [built[at] for at in range(len(trials))]


def _compile(
    sources: Mapping[int, Source],
    share: int,
    jobs: int,
    backend: Backend,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[int, Path | BuildError]:
    texts = list(_texts(sources, share))
    try:
        paths = backend.build_many(
            [assemble([sources[at] for at in text]) for text in texts],
            jobs=jobs,
            meanwhile=meanwhile,
            symbols=[[name for at in text for name in sources[at].symbols] for text in texts],
            modules=[join(sources[at].module for at in text) for text in texts],
        )
    except NoCompilerError:  # it is gone or hangs, and would for each of them
        raise
    except BuildError:
        # Find out which.
        return {at: _compile_alone(source, backend) for at, source in sources.items()}
    return {at: path for text, path in zip(texts, paths, strict=True) for at in text}


def _texts(sources: Mapping[int, Source], share: int) -> Iterator[list[int]]:
    """Yield the sources of every text: up to ``share`` that have their headers in common."""
    for unit in dict.fromkeys(source.header_set for source in sources.values()):
        own = [at for at, source in sources.items() if source.header_set == unit]
        yield from (own[at : at + share] for at in range(0, len(own), share))


def _compile_alone(source: Source, backend: Backend) -> Path | BuildError:
    try:
        return backend.build(source.file, symbols=source.symbols, module=source.module)
    except NoCompilerError:
        raise
    except BuildError as error:
        return error


def time_trials(
    bench: Bench,
    tried: Sequence[BuiltSchedule],
    *,
    samples: int = 5,
    min_sample_s: float = 1e-3,
    cold: bool = False,
    check: bool = True,
) -> Iterator[tuple[BuiltSchedule, Samples | PolysciError]]:
    """Yield each one's samples, or its error; all are checked before any is timed.

    A long one gets three samples, when PATIENCE_S has passed.
    """
    faults: dict[int, PolysciError] = {}
    for at, trial in enumerate(tried):
        if trial.error is None and check:
            try:
                bench.check(*trial.candidate, trial.schedule)
            except CheckError as error:
                faults[at] = error
    for at, trial in enumerate(tried):
        if fault := trial.error or faults.get(at):
            yield trial, fault
            continue
        try:
            (its,) = bench.time(
                [trial.candidate], samples=samples, budget_s=PATIENCE_S,
                min_sample_s=min_sample_s, cold=cold,
            )  # fmt: skip
            yield trial, its
        except CheckError as error:
            yield trial, error
