"""Seconds of schedules whose calls copy B as a whole or in parts, or read it where it lies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polysci.cost.batch import batch
from polysci.cost.estimate import Context
from polysci.cost.part_copies import part_seconds
from polysci.cost.plain_reads import plain_context, plain_seconds
from polysci.cost.traffic import panel_waits, traffic
from polysci.cost.traffic_counts import TrafficCounts
from polysci.space.directives import Plain
from polysci.space.enumerate import Family
from polysci.space.schedule import Schedule


def predict_all(context: Context, schedules: Sequence[Schedule]) -> list[float]:
    """Predicted seconds of each schedule, none along a curve; those with the same loops at once."""
    seconds = np.zeros(len(schedules))
    for plain, ahead in ((False, context), (True, plain_context(context))):
        own = [at for at, schedule in enumerate(schedules) if schedule.has(Plain) is plain]
        for part in batch(ahead, [schedules[at] for at in own]):
            positions = [own[at] for at in part.indices]
            members = [schedules[at] for at in positions]
            seconds[positions] = member_seconds(context, members, part.context, part.family)
    return [float(its) for its in seconds]


def member_seconds(
    context: Context, schedules: Sequence[Schedule], viewed: Context, family: Family
) -> list[float]:
    """Predicted seconds of the members of a family in the context ``viewed`` for its kernels."""
    estimate, count = traffic(viewed, family), len(family)
    seconds = [float(its) for its in np.broadcast_to(estimate.seconds, count)]
    compute = np.broadcast_to(estimate.compute, count)
    in_parts = any(schedule.packs_parts_of_b for schedule in schedules)
    waits = np.broadcast_to(panel_waits(viewed, family) if in_parts else 0.0, count)
    for at, schedule in enumerate(schedules):
        if schedule.has(Plain):
            seconds[at] += plain_seconds(context, schedule, float(compute[at]))
        if schedule.packs_parts_of_b:
            nest = TrafficCounts(viewed, family.select(slice(at, at + 1)))
            seconds[at] += part_seconds(context, schedule, nest, float(waits[at]))
    return seconds
