"""What copying a B that changes from call to call costs in parts, beside copying the whole."""

from __future__ import annotations

from math import ceil

from polysci.polyhedral.footprint import LINE
from polysci.polyhedral.schedule import Schedule
from polysci.rank.estimate import Context
from polysci.rank.panel_copies import PASSES, beyond_l2, bytes_to_pack, panel_transfers
from polysci.rank.second_reads import level_rates
from polysci.rank.traffic import panel_waits
from polysci.rank.traffic_counts import USABLE, TrafficCounts
from polysci.space.enumerate import Family


def part_seconds(context: Context, schedule: Schedule, viewed: Context, family: Family) -> float:
    """What copying parts costs beside copying the whole, which the estimate charges.

    Nothing is computed while a part comes from beyond L2; a part of up to half of L2 stays there,
    others go to L3 and come back, or to memory. Calls do not wait for panels that were just
    written. The ``family`` is the schedule alone, in the context ``viewed`` for its kernel.
    """
    nest, target, threads = TrafficCounts(viewed, family), context.target, context.threads
    whole, in_rows = bytes_to_pack(nest)
    price = context.machine.coefficient("copy_ns" if in_rows else "gather_ns") * 1e-9
    again, around = 1, {d.name: d.extent for d in context.contraction.dims}
    for loop in schedule.loops[: schedule.panels_depth]:
        if not (context.contraction.b.uses(loop.dim) or loop.parallel):
            again *= ceil(around[loop.dim] / loop.step)
        around[loop.dim] = loop.step
    far = nest.total_bytes() > USABLE * nest.l2_bytes
    part = nest.panels(schedule.panels_depth)
    read = whole / beyond_l2(nest) * far
    if part > nest.l2_bytes / 2:
        _, l3, memory = level_rates(context.machine, target, threads)
        in_l3 = part <= USABLE * target.l3 / target.sharing("l3", threads)
        read += whole * (PASSES - 1) / ((l3 if in_l3 else memory) * 1e9) * far
    saved = whole / LINE * price + panel_transfers(nest) + float(panel_waits(viewed, family)[0])
    return (again * (whole / LINE * price + read) - saved) / threads
