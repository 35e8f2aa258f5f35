"""What copying a B that changes from call to call into panels costs: as a whole, or in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from polysci.cost.estimate import Context
from polysci.cost.plain_reads import row_bytes
from polysci.cost.second_reads import USABLE, level_rates
from polysci.cost.traffic_counts import PAGE, TrafficCounts
from polysci.errors import SpecError, UnsupportedError
from polysci.polyhedral.footprint import Count
from polysci.space.directives import Ahead, Pack
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule, Step

# Lines from beyond L2 between which others are skipped: measured on an AMD Zen core, 5 ns a line.
UNFORESEEN: Final = 2.0  # times as long


def bytes_to_pack(nest: TrafficCounts) -> tuple[float, bool]:
    """Bytes of the panels of B that a call writes, and whether it reads B in contiguous runs.

    Runs of a B beyond L2 whose rows are pages apart cost as much as single elements.
    """
    contraction = nest.contraction
    if not contraction.packs_b:
        return 0.0, True
    offset = contraction.w.offset(nest.context.strides[contraction.w.array])
    apart = row_bytes(nest.context) >= PAGE and nest.panels() > nest.l2_bytes
    return nest.panels(), offset.coef(nest.column.name) == 1 and not apart


def seconds_to_copy(nest: TrafficCounts, copy: Count | float, *, streams: bool = True) -> Count:
    """Seconds a byte of what is read from beyond L2 into a copy of so many bytes at a time.

    A copy of up to half of L2 stays there; others replace lines of L3, or go to memory and come
    back. ``streams``: no lines are skipped, so that prefetchers bring what is read.
    """
    context = nest.context
    target, machine = context.target, context.machine
    _, l3, memory = level_rates(machine, target, context.threads)
    cold = context.cold or nest.total_bytes() > USABLE * target.last_level.size
    in_l3 = copy <= USABLE * target.last_level.size / target.sharing("L3", context.threads)
    again = np.where(copy <= nest.l2_bytes / 2, 0.0, np.where(in_l3, 1 / l3, 2 / memory))
    seconds: Count = 1e-9 * ((1 if streams else UNFORESEEN) / (memory if cold else l3) + again)
    return seconds


def panel_transfers(nest: TrafficCounts) -> float:
    """Seconds that panels of all of B, which L2 does not hold, come and go while it is copied."""
    panels = nest.panels()
    if not nest.contraction.packs_b or panels <= nest.l2_bytes / 2:
        return 0.0
    return panels * float(seconds_to_copy(nest, panels))


def part_forms(context: Context, schedules: Iterable[Schedule]) -> Iterator[Schedule]:
    """The schedules with B copied part by part, of those that can be.

    Parts are copied once each: inside the loops that move B alone, or inside those over reductions.
    """
    contraction = context.contraction
    if not contraction.packs_b:
        return
    for schedule in schedules:
        parallel = len(schedule.parallel)
        places = {parallel, *(at + parallel for at in _places(context, schedule))} - {0}
        for depth in sorted(places):
            form = schedule.without(Ahead).with_nest(_with_part(schedule, depth))
            try:
                resolve(contraction, context.strides, form)
            except (SpecError, UnsupportedError):
                continue
            yield form


def _places(context: Context, schedule: Schedule) -> Iterator[int]:
    """How many loops behind the parallel ones may stand around the copies."""
    contraction = context.contraction
    leading = schedule.loops[len(schedule.parallel) :]
    of_b = [contraction.b.uses(loop.dim) for loop in leading]
    yield next((at for at, moves in enumerate(of_b) if not moves), len(of_b))
    sums = [loop.dim in contraction.reductions for loop in leading]
    yield next((at for at, splits in enumerate(sums) if not splits), len(sums))


def _with_part(schedule: Schedule, depth: int) -> tuple[Step, ...]:
    """The steps with ``pack(B)`` inside so many loops, behind a ``pack(A)`` in the same place."""
    steps, loops = list[Step](), 0
    todo = True
    for step in schedule.nest:
        if todo and loops == depth and not isinstance(step, Pack):
            steps.append(Pack(operand="B"))
            todo = False
        steps.append(step)
        loops += not isinstance(step, Pack)
    return (*steps, *[Pack(operand="B")] * todo)
