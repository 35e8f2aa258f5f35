"""Conflicts of banks and sectors of the tiles that are chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polysci.cost import Context
from polysci.lower import choice
from polysci.lower.mapped.algorithm import count_work, work_of
from polysci.lower.mapped.plan import MappedPlan, form_of, resolve
from polysci.lower.mapped.warp_counts import counts_of
from polysci.ops import parse_problem
from polysci.ops.layer_lists import load
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.runtime.backends.cuda import target_of
from polysci.space.directives.copy import Copy
from polysci.target.machine import assume_rates
from polysci.target.microkernels import find

SM_80 = target_of("sm_80")


def context_of(problem: Problem) -> Context:
    _, roles, strides = model_of(problem)
    return Context(roles, strides, SM_80, assume_rates(SM_80), SM_80.cores)


def plan_of(text: str, kernel: str, rows: int, columns: int, depth: int, copy: Copy) -> MappedPlan:
    _, roles, strides = model_of(parse_problem(text))
    tile = find(f"fma_cuda4_f32_{kernel}")
    return resolve(roles, strides, form_of(roles, tile, rows, columns, depth, copy))


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_chosen_tiles_read_without_conflicts(layout: str) -> None:
    for problem in load("resnet50", layout)[::6]:
        context = context_of(problem)
        (first, *_) = choice.candidates(problem, context, 1)
        plan = resolve(context.contraction, context.strides, first.schedule)
        assert counts_of(plan).conflicts[0] == 0, (problem, first)


def test_a_pad_of_four_elements_avoids_conflicts_of_copies() -> None:
    """Copies across lines: without a pad all items that copy for one pixel meet in a bank."""
    shape = ("mm:256x256x256", "8x8", 128, 128, 8)
    none, four = (counts_of(plan_of(*shape, Copy(2, pad))) for pad in (0, 4))
    assert none.conflicts[1] > 0 and four.conflicts == (0, 0)
    assert none.reads == four.reads and none.sectors == four.sectors


def test_short_steps_read_half_sectors() -> None:
    """Four elements of a pixel are 16 of the 32 bytes of a sector."""
    short, long = (
        counts_of(plan_of("mm:256x256x256", "8x8", 128, 128, depth, Copy(2, 4))) for depth in (4, 8)
    )
    assert (short.sectors, long.sectors) == (128 + 64, 128 + 128)


def test_sectors_of_padding_are_not_read() -> None:
    inner, whole = (
        counts_of(plan_of(text, "4x4", 16, 16, 8, Copy(2, 4)))
        for text in ("mb1ic8ih4oc16oh4kh3ph1", "mb1ic8ih6oc16oh4kh3ph0")
    )
    assert inner.reads == whole.reads and inner.sectors <= whole.sectors


@pytest.mark.exhaustive
def test_counts_only_add_to_predictions() -> None:
    """So that the search may stop early: the least time is without them."""
    problem = parse_problem("mb1ic64ih14oc64kh3ph1")
    context = context_of(problem)
    every = choice.candidates(problem, context, 8)
    whole = choice.candidates(problem, context, None)
    assert every == whole[:8] and len(whole) > 100
    for candidate in whole[::9]:
        plan = resolve(context.contraction, context.strides, candidate.schedule)
        least, counted = work_of(plan, context.machine), count_work(plan, context.machine)
        assert counted == replace(least, fronts=counted.fronts, sectors=counted.sectors)
        assert least.bound(context) <= least.seconds(context) <= counted.seconds(context)
        assert counted.seconds(context) == candidate.seconds
