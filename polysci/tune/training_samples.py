"""Make training samples from the record file: schedules measured on this machine, by layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np

from polysci.errors import PolysciError, WisdomError
from polysci.ops import layer_lists, parse_key
from polysci.ops.problem import Problem
from polysci.runtime.measurement import host_of
from polysci.space import schedule
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule
from polysci.target.target import Target
from polysci.tune import context_of
from polysci.tune.training import TrainingSample
from polysci.tune.wisdom import Record, Wisdom

LAYERS, SCHEDULES = 3, 50  # least numbers to train on


def training_samples(
    wisdom: Wisdom, target: Target, threads: int | None = None
) -> list[TrainingSample]:
    """Schedules that searches measured on this machine, with ``threads`` or any number of threads.

    Records that this version cannot read are left out. Raises WisdomError with fewer than LAYERS
    layers of two schedules or more, or fewer than SCHEDULES schedules.
    """
    layers: dict[tuple[str, int], list[Record]] = {}
    for record in wisdom.measurements(host_of(target), threads=threads):
        layers.setdefault((record.problem, record.threads), []).append(record)
    networks = _networks()
    samples = [
        sample
        for (key, count), records in layers.items()
        if (sample := _sample(key, count, records, target, networks))
    ]
    _enough(wisdom, samples, threads)
    return samples


def _sample(
    key: str, threads: int, records: Sequence[Record], target: Target, networks: dict[str, str]
) -> TrainingSample | None:
    try:
        problem = parse_key(key)
        context = context_of(problem, threads, target)
    except PolysciError:
        return None
    if problem.dtype != "f32":
        return None
    schedules, seconds = list[Schedule](), list[float]()
    for record in records:
        with suppress(PolysciError):
            parsed = schedule.parse(record.schedule)
            resolve(context.contraction, context.strides, parsed)  # it may be another version's
            schedules.append(parsed)
            seconds.append(record.seconds)
    if len(schedules) < 2:
        return None
    return TrainingSample(_group(problem, networks), context, tuple(schedules), np.array(seconds))


def _group(problem: Problem, networks: dict[str, str]) -> str:
    """The first network that has the layer, at any batch; else the layer itself."""
    single = problem.with_batch(1) if problem.batched else problem
    return networks.get(single.key, single.key)


def _networks() -> dict[str, str]:
    """The first network by name that has a layer, by the layer's key."""
    network_by_key: dict[str, str] = {}
    for name in layer_lists.names():
        for problem in layer_lists.load(name):
            stored = [problem]
            if problem.layout:  # which products lack
                stored += [problem.with_(layout="nchw")]
            for same in stored:
                network_by_key.setdefault(same.key, name)
    return network_by_key


def _enough(wisdom: Wisdom, samples: Iterable[TrainingSample], threads: int | None) -> None:
    counts = [len(sample.schedules) for sample in samples]
    if len(counts) < LAYERS or sum(counts) < SCHEDULES:
        where = "" if threads is None else f" with {threads} thread(s)"
        raise WisdomError(
            f"{wisdom.path}: expected at least {SCHEDULES} schedules of {LAYERS} layers, measured "
            f"on this machine{where}; got {sum(counts)} of {len(counts)}; "
            "'polysci optimize resnet50 --level patient' measures sixty of every layer"
        )
