"""The rates of caches and memory that threads share."""

from dataclasses import replace

from polysci.cost.bandwidths import level_rates
from polysci.target.host import detect
from polysci.target.machine import Machine
from polysci.target.target import Memory

TARGET = replace(
    detect("portable"), cores=2,
    memories=(Memory("L1", 500), Memory("L2", 1000), Memory("L3", 5000, cores=2)),
)  # fmt: skip
MACHINE = Machine(peak=50.0, l2=40.0, l3=30.0, memory=12.0, l3_all=40.0, memory_all=16.0)


def test_threads_share_l3_and_memory() -> None:
    assert level_rates(MACHINE, TARGET, 1) == (40, 30, 12)
    assert level_rates(MACHINE, TARGET, 2) == (40, 20, 8)
