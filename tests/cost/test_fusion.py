"""The bound of stages that run together: what it counts, and what it prunes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polysci.cost.fusion import FusedWork, FusionCosts, MemberWork
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.target.target import Memory, Target

SAFE = 0.9


@pytest.fixture
def target() -> Target:
    caches = (Memory("L1", 1 << 10), Memory("L2", 4 << 10), Memory("L3", 64 << 10, cores=2))
    return replace(detect(), memories=caches, cores=2)


def costs(target: Target, threads: int = 1, **coefficients: float) -> FusionCosts:
    rates = replace(
        assume_rates(target), l3=10.0, l3_all=8.0, memory=2.0, memory_all=3.0
    ).with_coefficients({"safe_bound": SAFE, **coefficients})
    return FusionCosts(rates, target, threads)


def work(leaves: int, alone: float = 1.0, repeated: float = 0.0) -> FusedWork:
    return FusedWork((MemberWork(alone, alone, least=0.5, repeated=repeated),), leaves, 0)


@pytest.mark.parametrize(
    ("size", "threads", "nanoseconds"),
    [
        (5 << 10, 1, 0.0),  # L1 and L2 hold it
        (6 << 10, 1, (1 << 10) / 10.0),  # the fastest rate, although all together took longer
        (11 << 10, 2, (1 << 10) / 10.0),  # two cores have two L2
        (169 << 10, 1, (100 << 10) / 2.0),
        (174 << 10, 2, (100 << 10) / 3.0),
    ],
)
def test_what_leaves(target: Target, size: int, threads: int, nanoseconds: float) -> None:
    assert costs(target, threads).leaving(size) == pytest.approx(1e-9 * nanoseconds)


def test_the_bound_is_the_larger_part(target: Target) -> None:
    assert costs(target).bound(work(0, repeated=0.5)) == pytest.approx(SAFE * 0.75)
    assert costs(target).bound(work(1 << 40)) > 500 * SAFE


@pytest.mark.parametrize(("repeated", "prunes"), [(0.9, False), (1.0, True)])
@pytest.mark.parametrize("risk", [0.0, 0.5])
def test_no_risk_prunes(target: Target, repeated: float, prunes: bool, risk: float) -> None:
    """A run is pruned if its bound exceeds what its members take, whatever loops may cost."""
    priced = costs(target, row_fusion_risk=risk)
    assert priced.prunes(work(0, repeated=repeated)) is prunes


@pytest.mark.parametrize(
    ("size", "nanoseconds"),
    [
        (2 << 10, 0.0),  # has room in half of L2
        (3 << 10, (3 << 10) / 2 / 8.0),  # half of it stays there
        (32 << 10, (32 << 10) / 8.0),  # has room in half of L3
        (48 << 10, (48 << 10) * (0.5 / 8.0 + 0.5 / 2.0)),  # half of it stays there
        (64 << 10, (64 << 10) / 2.0),
        (96 << 10, (96 << 10) / 2.0),
    ],
)
def test_what_a_tensor_takes_into_l2(target: Target, size: int, nanoseconds: float) -> None:
    priced = costs(target, row_fusion_cache=0.5)
    assert priced.moving(size) == pytest.approx(1e-9 * nanoseconds)


def test_results_come_into_l2_and_leave_it(target: Target) -> None:
    priced = costs(target, row_fusion_cache=0.5, function_ns=0.0)
    size = 16 << 10
    assert priced.writing(size) == pytest.approx(2 * priced.moving(size))
    assert priced.loop(1, (size,), (size, size)) == pytest.approx(5 * priced.moving(size))
