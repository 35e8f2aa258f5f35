"""Which lines threads of a network find in each other's caches."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod

import numpy as np
import pytest

from polysci.cost.features import CostCounts
from polysci.cost.foreign import foreign_lines
from polysci.cost.shortlist import as_family, choices
from polysci.ops import parse_problem
from polysci.space.schedule import Schedule
from tests.support.samples import fixed_context

DEPTHWISE = "g576mb1ic576ih14oc576oh14kh3ph1"
POINTWISE = "mb1ic64ih14oc128oh14kh1ph0"
GROUPED = "g4mb1ic256ih14oc256oh14kh1ph0"
ROW = 14 * 64 * 4 / 64  # lines of a row of pixels of 64 channels


def count(problem: str, schedule: str, threads: int) -> float:
    context = fixed_context(parse_problem(problem), threads)
    _, family = as_family(context, Schedule.parse(schedule))
    return float(np.max(foreign_lines(CostCounts(context, family))))


def brute(schedule: Schedule, extents: dict[str, int], threads: int) -> float:
    """Return the share of C that tasks of threads write outside of their own rows ``p``."""
    loops = schedule.parallel
    tasks = list(product(*(range(0, extents[loop.dim], loop.step) for loop in loops)))
    fewest, more = divmod(len(tasks), threads)
    ends = [at * fewest + min(at, more) for at in range(threads + 1)]
    foreign = 0
    for thread, (begin, end) in enumerate(pairwise(ends)):
        own = range(thread * extents["p"] // threads, (thread + 1) * extents["p"] // threads)
        for task in tasks[begin:end]:
            whole = {dim: range(extent) for dim, extent in extents.items()}
            for loop, first in zip(loops, task, strict=True):
                whole[loop.dim] = range(first, min(first + loop.step, extents[loop.dim]))
            other = prod(len(part) for dim, part in whole.items() if dim != "p")
            foreign += other * sum(row not in own for row in whole["p"])
    return foreign / prod(extents.values())


@pytest.mark.parametrize("threads", [2, 7])
@pytest.mark.parametrize(
    "schedule",
    [
        "p:2* g:96* p q:7 g:32 > depthwise_avx512_f32_7x32",
        "p:4* g:96* p q:7 g:32 > depthwise_avx512_f32_7x32",
        "p:3* g:192* p q:7 g:32 > depthwise_avx512_f32_7x32",
        "p:7* g:96 p q:7 g:32 > depthwise_avx512_f32_7x32",
        "p* g:32* > depthwise_avx512_f32_14x32",
    ],
)
def test_shares_by_rows_are_those_of_the_tasks(schedule: str, threads: int) -> None:
    lines, row = 14 * ROW * 9, ROW * 9
    halo = (threads - 1) * 2 * row  # a filter reads a row of each neighbour, above or below
    wanted = 2 * lines * brute(Schedule.parse(schedule), {"p": 14, "g": 576}, threads) + halo
    assert count(DEPTHWISE, schedule, threads) == pytest.approx(wanted)


def test_shares_by_channels_are_spread_over_all_rows() -> None:
    filters = "k:64* p q:7 k:32 > brgemm_avx512_f32_7x32"
    # Each of two threads reads all of x, and writes half of the filters of the other one's rows.
    assert count(POINTWISE, filters, 2) == pytest.approx(14 * ROW * (1 + 2 / 2))
    groups = "g* p q:7 k:32 > brgemm_avx512_f32_7x32"
    assert count(GROUPED, groups, 4) == pytest.approx(2 * 14 * ROW * 4 * 3 / 4)


@pytest.mark.parametrize(
    ("problem", "schedule"),
    [
        (POINTWISE, "p:7* p q:7 k:32 > brgemm_avx512_f32_7x32"),
        (GROUPED, "p:7* g p q:7 k:32 > brgemm_avx512_f32_7x32"),
    ],
)
def test_rows_of_one_thread_are_its_own(problem: str, schedule: str) -> None:
    assert count(problem, schedule, 2) == 0
    assert count(problem, schedule.replace("*", ""), 2) == 0


@pytest.mark.parametrize("problem", ["mm:256x64x64", "bwd_w mb2ic16ih8oc16oh8kh3ph1"])
def test_nothing_is_said_of_factors_that_change(problem: str) -> None:
    context = fixed_context(parse_problem(problem), 2)
    for choice in choices(context, 3):
        assert foreign_lines(CostCounts(context, choice.family)).sum() == 0


def test_grouped_layers_share_rows_where_threads_do() -> None:
    best = choices(fixed_context(parse_problem(GROUPED), 2), 1)[0].schedule
    assert next(loop.dim for loop in best.parallel) == "p"
    assert "g" in [loop.dim for loop in best.loops]
