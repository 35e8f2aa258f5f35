"""The rates of caches and memory that threads share."""

from dataclasses import replace

from polysci.cost.second_reads import level_rates
from polysci.target.host import detect
from polysci.target.machine import Machine

TARGET = replace(detect("portable"), l2=1000, l3=5000, l2_cores=1, l3_cores=2, cores=2)
MACHINE = Machine(peak=50.0, l2=40.0, l3=30.0, memory=12.0, l3_all=40.0, memory_all=16.0)


def test_threads_share_l3_and_memory() -> None:
    assert level_rates(MACHINE, TARGET, 1) == (40, 30, 12)
    assert level_rates(MACHINE, TARGET, 2) == (40, 20, 8)
