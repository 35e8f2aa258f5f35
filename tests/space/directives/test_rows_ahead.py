"""Where x is prefetched by rows: pixels side by side, channels lines apart."""

from __future__ import annotations

import pytest

from polysci.cost.shortlist import estimate_of
from polysci.ops import Conv2d, parse_problem
from polysci.runtime.source import emit
from polysci.space.prefetch import RowsAhead, steps_ahead
from polysci.space.schedule import Schedule
from polysci.target.microkernels import find
from tests.support.samples import fixed_context

SQUARE = find("brgemm_avx512_f32_14x32")


@pytest.mark.parametrize(
    ("rows", "step", "depth", "lines"),
    [
        ([(28, 4)], 784, 64, 3),  # 112 bytes lie in three lines at most
        ([(14, 4)], 12544, 256, 2),
        ([(2, 56), (14, 4)], 784, 64, 4),  # two image rows
        ([(14, 8)], 12544, 256, 3),  # every other pixel
        ([(14, 256)], 4, 64, 0),  # channels last: steps share lines
        ([(14, 64)], 12544, 64, 0),  # rows do not
        ([(14, 4)], 32, 64, 0),  # a whole image in a line
        ([(14, 4)], 784, steps_ahead(), 0),  # over before the first one comes
        ([], 784, 64, 0),
    ],
)
def test_rows_that_share_lines_are_asked_for(
    rows: list[tuple[int, int]], step: int, depth: int, lines: int
) -> None:
    ahead = RowsAhead.of(SQUARE, rows, step, depth)
    assert (ahead.lines if ahead else 0) == lines


@pytest.mark.parametrize("name", ["depthwise_avx512_f32_14x32", "brgemm_amx_bf16_32x32"])
def test_kernels_that_read_no_scalars_of_x_ask_for_none(name: str) -> None:
    assert RowsAhead.of(find(name), [(14, 4)], 12544, 64) is None


def emitted(layout: str, schedule: str, channels: int) -> str:
    problem = parse_problem(f"mb1ic{channels}ih56oc64kh1ph0", layout)
    return emit(problem, Schedule.parse(schedule), 1).text


@pytest.mark.parametrize(
    ("layout", "schedule", "channels", "asks"),
    [
        ("nchw", "k:32 p q:4 > brgemm_avx512_f32_4x32", 64, True),
        ("nhwc", "k:32 p q:4 > brgemm_avx512_f32_4x32", 64, False),
        (
            "nchw",
            "pack(A) k:32 p q:4 > brgemm_avx512_f32_4x32",
            64,
            False,
        ),
        ("nchw", "k:32 p q:4 > brgemm_avx512_f32_4x32", 8, False),
        ("nchw", "swap(A,B) q:32 k:4 > brgemm_avx512_f32_4x32", 256, True),
        ("nchw", "swap(A,B) q:32 k:4 > brgemm_avx512_f32_4x32", 64, False),
    ],
)
def test_code_that_prefetches(layout: str, schedule: str, channels: int, asks: bool) -> None:
    text = emitted(layout, schedule, channels)
    assert (f".soon = {steps_ahead()}" in text) is asks


def test_the_model_counts_the_prefetches() -> None:
    """A load for every product and two prefetches on top; tiles of two vectors hide them."""
    context = fixed_context(Conv2d.parse("mb1ic256ih56oc64kh1ph0", "nchw"))
    for columns, shows in ((16, True), (32, False)):
        direct, packed = (
            estimate_of(
                context,
                Schedule.parse(f"{pack}k:{columns} p q:14 > brgemm_avx512_f32_14x{columns}"),
            )
            for pack in ("", "pack(A) ")
        )
        assert bool(direct.compute[0] > 1.05 * packed.compute[0]) is shows
