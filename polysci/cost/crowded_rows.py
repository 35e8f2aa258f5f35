"""What a call waits for where more of its rows of A share sets of L1 than these have ways."""

from __future__ import annotations

import numpy as np

from polysci.cost.traffic_counts import PERIODS, TrafficCounts
from polysci.polyhedral.footprint import LINE, Count

# Shown share of the time in which L2 delivers a line that L1 lost between two steps, over the share
# by which rows exceed the ways. Measured on a Zen 4 core of 8 ways: experiments/README.md.
_SHOWN = 0.4


def crowding_seconds(nest: TrafficCounts) -> Count:
    """Seconds that steps of the reduction wait for lines of A that the steps before have evicted.

    A step reads an element of each row of a call. Rows a multiple of a page apart share one set, so
    that a line comes from L2 as often as a word of it is read. Tiles of AMX read whole lines.
    """
    kernel = nest.family.tiles[0].kernel
    of_rows = kernel.family == "brgemm" and not nest.contraction.swapped
    if not of_rows or kernel.isa == "amx" or nest.packed.all():
        return np.zeros(1)
    x, step = nest.contraction.x, nest.tiles[-1]
    run, rows = nest.runs_of(x, step, LINE)
    lines = rows * np.ceil(run / LINE)
    sharing = lines * nest.crowding_of(x, len(nest.tiles) - 1, PERIODS[0]) * LINE / PERIODS[0]
    ways = nest.context.target.memory("L1").lines_apart(PERIODS[0])
    loads = nest.bytes_moved(len(nest.tiles) - 1)[0] / LINE / nest.compute.vnni_factor
    waits = _SHOWN * np.maximum(sharing / ways - 1.0, 0.0) * LINE / nest.context.machine.l2 * 1e-9
    return np.where(nest.packed, 0.0, loads * waits)
