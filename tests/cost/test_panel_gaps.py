"""What waiting for the next panel of weights costs, where memory has it elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polysci.cost.shortlist import predict_seconds
from polysci.ops import parse_problem
from polysci.space.schedule import Schedule
from tests.support.samples import fixed_context

VECTOR = "mm:1x4096x4096 b=constant"  # weights of 64 MiB
SMALL = "mm:1x1024x1024 b=constant"  # that stay in L3


def waits(problem: str, schedule: str) -> float:
    """Jumps among a schedule's panels, of 1 us each."""
    context = fixed_context(parse_problem(problem))
    seconds = [
        predict_seconds(
            replace(context, machine=context.machine.with_coefficients({"jump_ns": each})),
            Schedule.parse(schedule),
        )
        for each in (0.0, 1000.0)
    ]
    return 1e6 * (seconds[1] - seconds[0])


@pytest.mark.parametrize(
    ("schedule", "jumps"),
    [
        ("j:32", 1),  # one panel behind the other
        ("j:32 k:256", 1),
        ("j:128 j:32", 1),
        ("k:256 j:32", 16 * 128),
        ("j:128 k:256 j:32", 16 * 128),
        ("k:1024 j:32 k:256", 4 * 128),  # parts of a panel lie as they are read
    ],
)
def test_panels_that_do_not_follow_are_waited_for(schedule: str, jumps: int) -> None:
    text = f"{schedule} > brgemm_avx512_f32_1x32"
    assert waits(VECTOR, text) == pytest.approx(jumps, rel=0.01, abs=0.01)


def test_nothing_waits_for_what_stays_in_l3() -> None:
    assert waits(SMALL, "k:256 j:32 > brgemm_avx512_f32_1x32") == 0


def test_prefetched_panels_are_there() -> None:
    rows, text = "mm:48x4096x4096 b=constant", "k:256 j:32 i:8 {}> brgemm_avx512_f32_8x32"
    assert waits(rows, text.format("")) > 1000
    assert waits(rows, text.format("ahead(B) ")) == 0
