"""The rates of caches and memory that threads share."""

from dataclasses import replace

from polysci.cost import Context
from polysci.ops.matmul import Matmul
from polysci.target.host import detect
from polysci.target.machine import Machine
from polysci.target.target import Memory
from polysci.tune import model_of

TARGET = replace(
    detect("portable"), cores=2,
    memories=(Memory("L1", 500), Memory("L2", 1000), Memory("L3", 5000, cores=2)),
)  # fmt: skip
MACHINE = Machine(peak=50.0, l2=40.0, l3=30.0, memory=12.0, l3_all=40.0, memory_all=16.0)


def test_threads_share_l3_and_memory() -> None:
    _, roles, strides = model_of(Matmul(8, 8, 8))
    one, two = (Context(roles, strides, TARGET, MACHINE, threads) for threads in (1, 2))
    assert one.rates == (40, 30, 12)
    assert two.rates == (40, 20, 8)
