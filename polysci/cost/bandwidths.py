"""What L2, L3 and memory deliver to a thread."""

from __future__ import annotations

from polysci.target.machine import Machine
from polysci.target.target import Target

USABLE = 7 / 8  # of a cache: one way in eight is left for data that the model does not count


def level_rates(machine: Machine, target: Target, threads: int) -> tuple[float, float, float]:
    """GB/s that L2, L3 and memory feed one of so many threads."""
    return (
        machine.l2,
        min(machine.l3, machine.l3_all / target.sharing("L3", threads)),
        min(machine.memory, machine.memory_all / threads),
    )
