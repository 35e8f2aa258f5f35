"""Levels, progress and results of searches, and the announcement of a calibration."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from polysci.measure.first_run import check_first_run
from polysci.ops.problem import Problem
from polysci.runtime.backends import backend_named
from polysci.runtime.measurement import Measurement
from polysci.runtime.primitive import Primitive, build_primitive, load_primitive
from polysci.runtime.source import Source
from polysci.space.schedule import Schedule
from polysci.target.target import HOST
from polysci.text.tables import shorten, time_text


@dataclass(frozen=True, slots=True)
class SearchLevel:
    """How hard to look: schedules measured (None: all), register tiles and blocks in the space.

    After ``seconds`` no further schedule is begun, the first few apart: huge layers take long.
    Nor is one whose lower bound, times ``near``, exceeds the best time.
    """

    measured: int | None
    tiles: int
    blocks: int
    finalists: int = 4
    seconds: float = inf
    near: float = 1.0


LEVELS: Mapping[str, SearchLevel] = {
    "wisdom-only": SearchLevel(0, 0, 0),
    "estimate": SearchLevel(0, 8, 2),
    # A bound is 0.9 of the time at the fastest kernel's rate: within 5 % of that is enough.
    "measure": SearchLevel(8, 8, 2, seconds=8.0, near=1.17),
    "patient": SearchLevel(60, 14, 3, 6),
    "exhaustive": SearchLevel(None, 40, 3, 10),
}


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate: predicted seconds, measured median, or why it fell out."""

    schedule: Schedule
    predicted: float
    seconds: float | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class AnyOrder:
    """The best where sums may have any order: predicted seconds, and those of a record if any."""

    predicted: float
    measured: float | None = None

    def cost(self, result: Result) -> float:
        """Time of a reproducible result over this one, measured where both were; 1: nothing."""
        if self.measured and result.measurement:
            return result.measurement.median / self.measured
        return max(1.0, result.predicted / self.predicted)  # any order is that one as well


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a search; times in seconds. ``measurement`` is None where nothing was run."""

    problem: Problem
    schedule: Schedule
    source: Source
    predicted: float
    measurement: Measurement | None
    trials: tuple[Trial, ...]
    spent: float
    level: str
    threads: int
    interrupted: bool = False
    any_order: AnyOrder | None = None  # of a reproducible search: what its order is compared with
    verify: bool = True  # code that was not measured, before it is first handed out
    backend: str = HOST

    def __repr__(self) -> str:
        measured = f"{self.measurement.gflops:.1f} GFLOP/s" if self.measurement else "not measured"
        return (
            f"Result({shorten(str(self.problem), 100)!r}, {shorten(str(self.schedule), 100)!r}, "
            f"predicted={time_text(self.predicted)}, {measured}, level={self.level!r}, "
            f"threads={self.threads})"
        )

    def primitive(self, *, flush_denormals: bool = True) -> Primitive:
        """Build (or find in the cache) and load the primitive.

        ``flush_denormals``: calls take numbers below 2^-126 for 0, which spares them tens of cycles
        each; the caller's mode stays as it is. Raises CheckError for code that is wrong.
        """
        if self.verify and self.measurement is None:
            self._verify(flush_denormals)
        return load_primitive(
            self.problem, self.source, self.threads, self.measurement,
            flush_denormals=flush_denormals, backend=self.backend,
        )  # fmt: skip

    def _verify(self, flush_denormals: bool) -> None:
        path = build_primitive(self.source, flush_denormals=flush_denormals, backend=self.backend)
        coded = self.problem if self.problem.x_shape[0] else self.problem.with_batch(1)
        check_first_run(path, coded, self.source, self.threads, backend_named(self.backend))


def highest_cost(results: Iterable[Result]) -> float | None:
    """Return the highest cost of the order of reproducible results; None without any."""
    costs = (result.any_order.cost(result) for result in results if result.any_order)
    return max(costs, default=None)


def cost_text(cost: float) -> str:
    """The line of a report that tells ``highest_cost``."""
    return f"reproducible sums: at most {cost:.2f} of the time of any order"


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a search: ``stage``, how far it is, the fastest schedule until then."""

    stage: str
    done: int
    total: int
    best: float | None = None
    schedule: Schedule | None = None


def describe_calibration(x: str) -> str:
    """Return the line that announces a calibration for inputs of type ``x``."""
    return f"measuring this machine once for {x} (less than a minute)"


def describe_device_calibration(device: str) -> str:
    """Return the line that announces the calibration of a device."""
    return f"measuring {device} once (a minute or two; Ctrl-C keeps what is measured)"


@contextmanager
def announce_calibration(line: str) -> Iterator[Callable[[int, int], None]]:
    """Write a line to standard error; on a terminal, a bar that vanishes with the block."""
    if not (sys.stderr and sys.stderr.isatty()):
        if sys.stderr:
            sys.stderr.write(f"{line}\n")
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(line)
        yield lambda done, total: bar.update(task, completed=done, total=total)
