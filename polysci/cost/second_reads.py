"""What L2, L3 and memory deliver to a thread, and what sums of results save that tiles make."""

from __future__ import annotations

from polysci.polyhedral.footprint import FLOAT
from polysci.target.host import Target
from polysci.target.machine import Machine

USABLE = 7 / 8  # of a cache: one way in eight is left for data that the model does not count
SUMS, MOVED = 3, 6  # instructions of ps_add_moments for each vector of results, and of columns


def level_rates(machine: Machine, target: Target, threads: int) -> tuple[float, float, float]:
    """GB/s that L2, L3 and memory feed one of so many threads."""
    return (
        machine.l2,
        min(machine.l3, machine.l3_all / target.sharing("l3", threads)),
        min(machine.memory, machine.memory_all / threads),
    )


def moments_gain(machine: Machine, target: Target, threads: int, elements: int, rows: int) -> float:
    """Seconds by which moments of a layer's f32 results cost less in its tiles than in a pass.

    The pass reads the results from where they lie, each thread its share, and sums behind that.
    Nothing hides the sums of tiles of ``rows`` rows: each vector takes the time of an FMA.
    """
    l2, l3, memory = level_rates(machine, target, threads)
    size = elements * FLOAT
    rate = l2 if size <= threads * target.l2 else l3 if size <= target.l3 else memory
    sums = (SUMS + MOVED / rows) * elements * 2 / machine.peak
    return (size / rate - sums) / threads * 1e-9
