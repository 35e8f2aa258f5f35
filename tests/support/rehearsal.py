"""A farm whose workers take made-up times: what they run instead of ``polysci.farm.tasks``."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self
from zlib import crc32

from distributed import get_worker

from polysci.cost import Context
from polysci.errors import PolysciError
from polysci.farm import FarmTasks, tasks
from polysci.measure.samples import Sample, Samples, samples_of
from polysci.ops.problem import Problem
from polysci.runtime.build.compiler import find_compiler
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.target.machine import assume_rates

LOG = "POLYSCI_REHEARSAL_LOG"  # a file: a line for each schedule that was tried, none for repeats
PAUSE = "POLYSCI_REHEARSAL_PAUSE"  # seconds that a timing takes
LAST = "POLYSCI_REHEARSAL_LAST"  # how many schedules are timed before workers raise an OSError
SLOW = "POLYSCI_REHEARSAL_SLOW"  # the name of a worker that is five times as fast, and not trusted


def seconds_of(text: str) -> float:
    """A time from 1 to 2 ms, by the schedule's text."""
    return (1000 + crc32(text.encode()) % 1000) * 1e-6


def timed() -> list[str]:
    """The schedules that were timed, in order."""
    path = Path(os.environ[LOG])
    return (
        [line.partition(" ")[2] for line in path.read_text().splitlines()] if path.exists() else []
    )


def measure_rates(x: str) -> str:
    return assume_rates(detect()).to_json()


def compile_schedules(job: Mapping[str, Any], texts: Sequence[str]) -> tasks.Answer:
    return {"built": []}


def try_schedules(job: Mapping[str, Any], built: Any, texts: Sequence[str]) -> tasks.Answer:
    time.sleep(float(os.environ.get(PAUSE, "0")))
    if LAST in os.environ and len(timed()) >= int(os.environ[LAST]):
        raise OSError("no more")
    if log := os.environ.get(LOG):
        with Path(log).open("a") as file:
            file.writelines(f"{get_worker().name} {text}\n" for text in texts)
    return _rows(texts, 5)


def compare_schedules(
    job: Mapping[str, Any], built: Any, texts: Sequence[str], options: Mapping[str, Any]
) -> tasks.Answer:
    return _rows(texts, options["samples"])


def measure_peak(job: Mapping[str, Any], built: Any) -> tasks.Answer:
    return _rows([], 0) | {"rows": [asdict(Sample(1e-11))]}


def search_schedules(
    job: Mapping[str, Any], built: Any, options: Mapping[str, Any]
) -> tasks.Answer:
    its, make_runner = tasks.TrialJob(**job), partial(RehearsalRunner, find_compiler().identity)
    if log := os.environ.get(LOG):
        with Path(log).open("a") as file:
            file.write(f"{get_worker().name} whole {its.problem}\n")
    return _rows([], 0) | {"rows": tasks.search_records(its, make_runner, **options)}


def _rows(texts: Sequence[str], count: int) -> tasks.Answer:
    worker = get_worker()
    drifting = str(worker.name) == os.environ.get(SLOW)
    factor = 0.2 if drifting else 1.0
    rows = [{"samples": [{"seconds": factor * seconds_of(text)}] * count} for text in texts]
    return {"worker": worker.address, "rate": 50.0 / factor, "rows": rows}


REHEARSAL = FarmTasks(
    tasks.describe,
    measure_rates,
    tasks.rank_schedules,
    compile_schedules,
    try_schedules,
    compare_schedules,
    measure_peak,
    search_schedules,
)


class RehearsalRunner:
    """The same times in this process."""

    resumable, width = True, 1

    def __init__(self, compiler: str, problem: Problem, context: Context) -> None:
        self.compiler = compiler

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def try_all(
        self, schedules: Sequence[Schedule]
    ) -> Iterator[tuple[Schedule, Samples | PolysciError]]:
        for schedule in schedules:
            time.sleep(float(os.environ.get(PAUSE, "0")))
            yield schedule, samples_of([seconds_of(str(schedule))] * 5)

    def compare(
        self, schedules: Sequence[Schedule], *, samples: int, eliminate: bool = False
    ) -> list[Samples]:
        return [samples_of([seconds_of(str(schedule))] * samples) for schedule in schedules]

    def peak(self) -> Sample:
        return Sample(1e-11)
