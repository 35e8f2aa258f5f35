"""What copying a B that changes from call to call costs in parts, beside copying the whole."""

from __future__ import annotations

from math import ceil

from polysci.cost.estimate import Context
from polysci.cost.panel_copies import bytes_to_pack, panel_transfers, seconds_to_copy
from polysci.cost.second_reads import USABLE
from polysci.cost.traffic_counts import TrafficCounts
from polysci.polyhedral.footprint import LINE
from polysci.space.schedule import Schedule


def part_seconds(context: Context, schedule: Schedule, nest: TrafficCounts, waits: float) -> float:
    """What copying parts costs beside copying the whole, which the estimate charges.

    Nothing is computed while a part comes from beyond L2. Prefetchers do not
    follow a part of rows of B that L2 does not hold. Calls do not wait for panels that were just
    written, as they do for ``waits`` seconds otherwise. The ``nest`` is of the schedule alone.
    """
    whole, in_rows = bytes_to_pack(nest)
    price = context.machine.coefficient("copy_ns" if in_rows else "gather_ns") * 1e-9
    again, around = 1, {d.name: d.extent for d in context.contraction.dims}
    for loop in schedule.loops[: schedule.panels_depth]:
        if not context.contraction.b.uses(loop.dim):
            again *= ceil(around[loop.dim] / loop.step)
        around[loop.dim] = loop.step
    far = nest.total_bytes() > USABLE * nest.l2_bytes
    part, column = nest.panels(schedule.panels_depth), nest.column
    rows = part * column.extent / around[column.name]
    streams = not in_rows or rows <= max(part, nest.l2_bytes / 2)
    read = whole * float(seconds_to_copy(nest, part, streams=streams)) * far
    saved = whole / LINE * price + panel_transfers(nest) + waits
    return (again * (whole / LINE * price + read) - saved) / context.threads
