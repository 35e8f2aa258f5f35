"""What reads of short runs of x cost, each of which comes into L1 from no stream."""

from __future__ import annotations

import numpy as np
import pytest

from polysci.cost.features import CostCounts, strided_reads
from polysci.cost.shortlist import as_family
from polysci.ops import parse_problem
from polysci.space.schedule import Schedule
from tests.support.samples import fixed_context

GROUPS = "g32mb1ic512ih14oc512kh3ph1"  # a line of f32 for each group and pixel
STRIDED = "g32mb1ic512ih28oc512oh14kh3sh2ph1"  # pixels 4 KiB apart in f32: all in one set
LINES = 32 * 14 * 14


def misses(problem: str, schedule: str, dtype: str = "f32") -> float:
    context = fixed_context(parse_problem(problem, "nhwc", dtype))
    _, family = as_family(context, Schedule.parse(schedule))
    return float(np.max(strided_reads(CostCounts(context, family))))


@pytest.mark.parametrize(
    ("dtype", "kernel", "steps"),
    [("f32", "avx512_f32", 16), ("bf16", "avx512bf16_bf16", 8), ("int8", "avx512vnni_i8", 4)],
)
def test_steps_that_read_one_run_share_its_miss(dtype: str, kernel: str, steps: int) -> None:
    """Images stay in L1 while a group is computed, or rows of them come again a few times."""
    number = misses(GROUPS, f"g p q:7 > brgemm_{kernel}_7x16", dtype)
    assert LINES <= number * steps <= 4 * LINES


def test_rows_of_a_full_set_come_again_for_every_step() -> None:
    few = misses(STRIDED, "g p q:5 > brgemm_avx512_f32_5x16")
    assert misses(STRIDED, "g p > brgemm_avx512_f32_14x16") > 16 * few


def test_a_copy_has_no_short_runs() -> None:
    assert misses(GROUPS, "g pack(A)+16 p q:7 > brgemm_avx512_f32_7x16") == 0
