"""What L1 waits for where calls read x as it lies, a line here and a line there."""

from __future__ import annotations

import numpy as np

from polysci.cost.second_reads import USABLE
from polysci.cost.traffic_counts import PERIODS, TrafficCounts
from polysci.polyhedral.footprint import LINE, Count
from polysci.polyhedral.footprint import traffic as level_traffic

_WAIT = 1.2e-9  # seconds for a run of at most a line: measured on an AMD Zen core, 13 rows of x


def short_run_seconds(nest: TrafficCounts) -> Count:
    """Seconds that runs of at most a line of x take into L1, as no prefetcher sees them coming.

    Rows of a call that are neighbours in x make such runs, one for every step of the reduction.
    """
    x, depths = nest.contraction.x, range(len(nest.tiles))
    if nest.packed.all():
        return np.zeros(1)
    run = nest.runs_of(x, nest.means[nest.depth], LINE)[0]
    if (run > LINE).all():
        return np.zeros(1)
    begun = []
    for depth in depths:
        number = nest.runs_of(x, nest.means[depth], LINE)[1] * nest.times(depth)[0]
        begun.append((np.where(nest.from_copy(depth), 0.0, number), np.zeros(1), np.zeros(1)))
    occupied = [nest.occupancy(depth, PERIODS[0]) for depth in depths]
    size = USABLE * nest.context.target.memory("L1").size
    runs = level_traffic(occupied, begun, size).a
    return np.where((run <= LINE) & ~nest.packed, runs * _WAIT, 0.0)
