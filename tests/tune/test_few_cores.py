"""Searches for more threads than this process has cores."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from polysci.ops.convolutions import Conv2d
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.tune import optimize, search
from polysci.tune.wisdom import Wisdom
from tests.support.rates import write_rates

TINY = Conv2d(N=1, C=5, H=6, W=6, K=8, R=3, S=3, pad=1)


@pytest.fixture
def one_cpu() -> Iterator[None]:
    """This thread, and what it starts, on one of its CPUs."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(("threads", "told"), [(1, 0), (3, 1)])
def test_threads_that_take_turns_cost_a_warning(
    fresh_cache: Path, caplog: pytest.LogCaptureFixture, threads: int, told: int
) -> None:
    search._warn_of_turns.cache_clear()
    few, wisdom = replace(detect("portable"), cores=2), Wisdom()
    write_rates(assume_rates(few), few, "f32")
    for _ in range(2):
        optimize(TINY, "estimate", threads, target=few, wisdom=wisdom)
    assert caplog.text.count(f"threads={threads}: this process may use 2 cores") == told


@pytest.mark.exhaustive
def test_two_threads_on_one_cpu(one_cpu: None, fresh_cache: Path) -> None:
    """They are not found to be faster than one, and nothing hangs."""
    target = detect("portable")
    assert target.cores == 1
    write_rates(assume_rates(target), target, "f32")
    results = [optimize(TINY, threads=n, target=target, time_limit=1.0) for n in (1, 2)]
    one, two = (result.measurement.median for result in results if result.measurement)
    assert one / 2 < two < 20 * one
    assert results[1].primitive().threads == 2
