"""What rows of a call cost that share more of L1's sets than these have ways."""

from __future__ import annotations

import numpy as np
import pytest

from polysci.cost.features import CostCounts, l1_conflicts
from polysci.cost.shortlist import as_family, predict_seconds
from polysci.cost.traffic_counts import PERIODS
from polysci.ops import parse_problem
from polysci.space.schedule import Schedule
from tests.support.samples import fixed_context

FAR = "mb1ic1024ih14oc256kh1"  # pixels 4 KiB apart: all in one set
NEAR = "mb1ic1040ih14oc256kh1"  # a line more
STRIDED = "mb1ic512ih28oc256oh14kh1sh2ph0"  # 2 KiB apart, every other one is read
IMAGE = 14 * 14


def crowded(problem: str, schedule: str) -> float:
    """Return the loads from L2, weighted by the share by which rows exceed the ways."""
    context = fixed_context(parse_problem(problem))
    _, family = as_family(context, Schedule.parse(schedule))
    line_s = 64e-9 / context.machine.l2
    return float(np.max(l1_conflicts(CostCounts(context, family)))) / line_s


@pytest.mark.parametrize(
    ("problem", "schedule", "rows", "loads"),
    [
        (FAR, "k:32 p k:16 > brgemm_avx512_f32_14x16", 14, IMAGE * 1024 * 256 / 16),
        (FAR, "p:2 k:16 > brgemm_avx512_f32_28x16", 28, IMAGE * 1024 * 256 / 16),
        (STRIDED, "p:2 k:16 > brgemm_avx512_f32_28x16", 28, IMAGE * 512 * 256 / 16),
    ],
)
def test_each_step_loads_the_rows_again(
    problem: str, schedule: str, rows: int, loads: float
) -> None:
    ways = fixed_context(parse_problem(problem)).target.memory("L1").size / PERIODS[0]
    wanted = loads * max(rows / ways - 1, 0.0)
    assert crowded(problem, schedule) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    ("problem", "schedule"),
    [
        (FAR, "k:64 p q:7 k:32 > brgemm_avx512_f32_7x32"),  # as few as there are ways
        (FAR, "pack(A)+16 p:2 k:16 > brgemm_avx512_f32_28x16"),
        (NEAR, "p:2 k:16 > brgemm_avx512_f32_28x16"),
    ],
)
def test_rows_that_have_ways_cost_nothing(problem: str, schedule: str) -> None:
    assert crowded(problem, schedule) == 0


@pytest.mark.parametrize("problem", [FAR, STRIDED])
def test_few_rows_are_predicted_to_be_faster(problem: str) -> None:
    context = fixed_context(parse_problem(problem))
    tall, flat = (
        predict_seconds(context, Schedule.parse(text))
        for text in ("p:2 k:16 > brgemm_avx512_f32_28x16",
                     "k:64 p q:7 k:32 > brgemm_avx512_f32_7x32")
    )  # fmt: skip
    assert tall > 1.5 * flat
