"""How often reads of packed B from memory begin elsewhere than where the last ones ended."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polysci.cost.traffic_counts import TrafficCounts
from polysci.polyhedral.contraction import REDUCTIONS
from polysci.polyhedral.footprint import Count, LevelTraffic


def jump_seconds(nest: TrafficCounts, l3: LevelTraffic, prefetched: NDArray[np.bool_]) -> Count:
    """Seconds that reads of B wait for memory where a panel is not behind the one before.

    ``l3`` is the traffic into L3. B lies panel by panel, the whole reduction of some columns in
    each: calls that go on along the reduction, or from whole panel to whole panel, read one stream.
    Nothing waits where earlier calls have ``prefetched`` the panel.
    """
    jumps = l3.b / _stream_bytes(nest)
    return np.where(prefetched, 0.0, jumps * nest.context.machine.jump_ns * 1e-9)


def _stream_bytes(nest: TrafficCounts) -> Count:
    """Bytes of B that calls read in the order in which they lie."""
    w, call, size = nest.contraction.w, nest.tiles[nest.depth], len(nest.family)
    reductions = [d for d in nest.contraction.dims if d.role in REDUCTIONS and w.uses(d.name)]
    covered = {d.name: call[d.name] for d in reductions}
    goes_on, streamed = np.ones(size, dtype=bool), np.broadcast_to(nest.panel_bytes(call), size)
    for position in reversed(range(nest.depth)):
        name, trips = nest.dims[position], nest.trips[position]
        if name in covered:
            covered[name] = nest.tiles[position][name]
        elif w.uses(name):
            for d in reductions:
                goes_on = goes_on & ((covered[d.name] >= d.extent) | (trips == 1))
        else:
            continue
        streamed = np.where(goes_on, streamed * trips, streamed)
    return streamed
