"""What the default ranker says of layers that are bound by the caches: depthwise ones."""

from __future__ import annotations

import pytest

from polysci.cost.shortlist import as_family, choices, estimate_of
from polysci.cost.traffic import work
from polysci.ops.convolutions import Conv2d
from polysci.space.schedule import Schedule
from tests.support.samples import fixed_context

LARGE = Conv2d(N=1, C=128, H=56, W=56, K=128, R=3, S=3, pad=1, groups=128)  # exceeds L2
SMALL = Conv2d(N=1, C=128, H=28, W=28, K=128, R=3, S=3, pad=1, groups=128)
ALONG = "p:28 p q:28 g:16 > depthwise_avx512_f32_28x16"
ACROSS = "p:28 p g:16 q:28 > depthwise_avx512_f32_28x16"
TALL = "p:4 q:7 g:16 > depthwise_avx512_f32_28x16"


def seconds(problem: Conv2d, schedule: str) -> float:
    return float(estimate_of(fixed_context(problem), Schedule.parse(schedule)).seconds[0])


def count(problem: Conv2d, schedule: str, name: str) -> float:
    _, counts = work(*as_family(fixed_context(problem), Schedule.parse(schedule)))
    return float(counts[name][0])


def test_lines_in_their_order_are_cheaper() -> None:
    assert seconds(LARGE, ALONG) < seconds(LARGE, ACROSS)
    lines = 128 * 56 * 56 * 4 / 64
    more = count(LARGE, ACROSS, "seek_ns") - count(LARGE, ALONG, "seek_ns")
    assert more == pytest.approx(lines / 5 * 1e-9, rel=0.1)


def test_what_stays_in_l2_has_no_order() -> None:
    assert count(SMALL, ACROSS, "seek_ns") == count(SMALL, ALONG, "seek_ns") == 0


def test_traffic_of_l2_shows_beside_that_of_l3() -> None:
    """Tiles of several image rows read fewer lines twice."""
    assert count(LARGE, TALL, "beside_l3") < 0.8 * count(LARGE, ALONG, "beside_l3")
    assert count(SMALL, TALL, "beside_l3") == 0


def test_no_first_choice_goes_across_the_lines() -> None:
    for choice in choices(fixed_context(LARGE), 5):
        assert [loop.dim for loop in choice.schedule.loops][-1] == "g", choice.schedule
