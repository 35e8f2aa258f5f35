"""From the record file to lessons: what was measured on this machine, by layer and network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np

from polysci.errors import PolysciError, SpecError, WisdomError
from polysci.ops import layer_lists, parse_problem
from polysci.ops.conv2d import Conv2d
from polysci.ops.problem import Problem
from polysci.polyhedral import schedule
from polysci.polyhedral.schedule import Schedule
from polysci.runtime.measurement import host_of
from polysci.space.resolve import resolve
from polysci.target.host import Target
from polysci.tune import context_of
from polysci.tune.training import TrainingSample
from polysci.tune.wisdom import Record, Wisdom

LAYERS, SCHEDULES = 3, 50  # the least to learn from


def training_samples(
    wisdom: Wisdom, target: Target, threads: int | None = None
) -> list[TrainingSample]:
    """What the searches on this machine measured, with ``threads`` or any number of them.

    Records that mean nothing to this polysci are left out. Raises WisdomError with fewer than
    LAYERS layers of two schedules or more, or fewer than SCHEDULES schedules.
    """
    layers: dict[tuple[str, int], list[Record]] = {}
    for record in wisdom.measured(host_of(target), threads=threads):
        layers.setdefault((record.problem, record.threads), []).append(record)
    networks = _networks()
    found = [
        lesson
        for (key, count), records in layers.items()
        if (lesson := _lesson(key, count, records, target, networks))
    ]
    _enough(wisdom, found, threads)
    return found


def _lesson(
    key: str, threads: int, records: Sequence[Record], target: Target, networks: dict[str, str]
) -> TrainingSample | None:
    try:
        problem = problem_of(key)
        context = context_of(problem, threads, target)
    except PolysciError:
        return None
    plans, seconds = list[Schedule](), list[float]()
    for record in records:
        with suppress(PolysciError):
            plan = schedule.parse(record.schedule)
            resolve(context.contraction, context.strides, plan)  # it may be another version's
            plans.append(plan)
            seconds.append(record.seconds)
    if len(plans) < 2:
        return None
    return TrainingSample(_group(problem, networks), context, tuple(plans), np.array(seconds))


def problem_of(key: str) -> Problem:
    """The problem that has this key. Raises SpecError where there is none."""
    words, _, dtype = key.rpartition(" ")
    text, _, layout = words.rpartition(" ")
    nest = key.split(maxsplit=1)[:1] == ["nest"]
    problem = parse_problem(words) if nest else parse_problem(text, layout)
    if problem.key != key:
        raise SpecError(f"problem {key!r}: dtype {dtype!r} is not that of {problem.key!r}")
    return problem


def _group(problem: Problem, networks: dict[str, str]) -> str:
    """The first network that has the layer, at whatever batch; else the layer itself."""
    one = problem.with_(N=1) if isinstance(problem, Conv2d) else problem
    return networks.get(one.key, one.key)


def _networks() -> dict[str, str]:
    """The first network by name that has a layer, by the layer's key."""
    found: dict[str, str] = {}
    for name in layer_lists.names():
        for layout in ("nhwc", "nchw"):
            for problem in layer_lists.load(name, layout):
                found.setdefault(problem.key, name)
    return found


def _enough(wisdom: Wisdom, found: Iterable[TrainingSample], threads: int | None) -> None:
    counts = [len(lesson.schedules) for lesson in found]
    if len(counts) < LAYERS or sum(counts) < SCHEDULES:
        where = "" if threads is None else f" with {threads} thread(s)"
        raise WisdomError(
            f"{wisdom.path}: expected at least {SCHEDULES} schedules of {LAYERS} layers, measured "
            f"on this machine{where}; got {sum(counts)} of {len(counts)}; "
            "'polysci optimize resnet50 --level patient' measures sixty of every layer"
        )
