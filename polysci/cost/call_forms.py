"""Seconds of schedules whose calls copy B as a whole or in parts, or read it where it lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from polysci.cost.batch import batch
from polysci.cost.estimate import Context
from polysci.cost.part_copies import part_seconds
from polysci.cost.plain_reads import plain_seconds
from polysci.cost.traffic import panel_waits, traffic
from polysci.cost.traffic_counts import TrafficCounts
from polysci.space.enumerate import Family
from polysci.space.schedule import Schedule


def predict_all(context: Context, schedules: Sequence[Schedule]) -> list[float]:
    """Predicted seconds of each schedule, none along a curve; those with the same loops at once."""
    seconds = np.zeros(len(schedules))
    for part in batch(context, schedules):
        members = [schedules[at] for at in part.indices]
        seconds[part.indices] = member_seconds(context, members, part.context, part.family)
    return [float(its) for its in seconds]


@dataclass(frozen=True, slots=True)
class Member:
    """One schedule, its family of one in the view of its kernel, and one thread's compute time."""

    context: Context
    schedule: Schedule
    viewed: Context
    family: Family
    compute: float


def _seconds_of_parts(member: Member) -> float:
    """Return what copying B in parts costs beside copying it as a whole."""
    waits = panel_waits(member.viewed, member.family)
    nest = TrafficCounts(member.viewed, member.family)
    return part_seconds(member.context, member.schedule, nest, float(np.ravel(waits)[0]))


# Seconds that directives add to the estimate, by the names that ``Directive.features`` returns.
FEATURES: Mapping[str, Callable[[Member], float]] = MappingProxyType(
    {
        "plain_reads": lambda it: plain_seconds(it.context, it.schedule, it.compute),
        "copied_parts": _seconds_of_parts,
    }
)


def member_seconds(
    context: Context, schedules: Sequence[Schedule], viewed: Context, family: Family
) -> list[float]:
    """Return the predicted seconds of a family's members; ``viewed`` is in its kernels' view."""
    estimate, count = traffic(viewed, family), len(family)
    seconds = [float(its) for its in np.broadcast_to(estimate.seconds, count)]
    compute = np.broadcast_to(estimate.compute, count)
    for at, schedule in enumerate(schedules):
        for name in features_of(schedule):
            member = Member(context, schedule, viewed, family.member(at), float(compute[at]))
            seconds[at] += FEATURES[name](member)
    return seconds


def features_of(schedule: Schedule) -> list[str]:
    """Return the rows of ``FEATURES`` that a schedule's directives add."""
    return [name for directive in schedule.directives for name in directive.features()]
