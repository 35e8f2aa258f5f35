"""The shortlist: the best schedules, few of them alike, and the best of other kinds."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from polysci.cost.call_forms import part_forms
from polysci.cost.shortlist import (
    ALIKE,
    choices,
    kind_of,
    plain_choices,
    predict_all,
    predict_seconds,
    rank_all,
    turns,
)
from polysci.ops.convolutions import Conv2d
from polysci.ops.matmul import Matmul
from polysci.space.directives import Stream
from polysci.space.schedule import Schedule
from tests.support import samples

LAYER = Conv2d(N=1, C=64, H=28, W=28, K=64, R=3, S=3, pad=1, layout="nchw")
CONTEXT = samples.fixed_context(LAYER)


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_choice_is_the_best_of_the_space(threads: int) -> None:
    context = samples.fixed_context(LAYER, threads)
    (best,) = islice(rank_all(context, 1), 1)
    for kinds in (0, 20):
        chosen = choices(context, 10, kinds=kinds)
        assert (chosen[0].schedule, chosen[0].cost) == (best.schedule, best.cost)
        costs = [choice.cost for choice in chosen]
        assert costs == sorted(costs) and len({choice.schedule for choice in chosen}) == len(chosen)


@pytest.mark.exhaustive
def test_few_are_alike_but_for_the_steps() -> None:
    chosen = choices(CONTEXT, 20)
    shapes = Counter(
        (it.kernel, it.has(Stream), *(getattr(step, "dim", "pack") for step in it.steps))
        for it in (choice.schedule for choice in chosen)
    )
    assert len(chosen) == 20 and max(shapes.values()) == ALIKE


@pytest.mark.exhaustive
def test_other_kinds_are_each_the_best_of_theirs_and_near() -> None:
    few, many = choices(CONTEXT, 5), choices(CONTEXT, 5, kinds=40)
    assert {choice.schedule for choice in few} <= {choice.schedule for choice in many}
    kinds = {kind_of(choice.schedule) for choice in many}
    assert len(kinds) > 3 * len({kind_of(choice.schedule) for choice in few})
    assert many[-1].cost <= CONTEXT.machine.coefficient("slower_kind") * many[0].cost
    packed = {choice.schedule.pack is not None for choice in many}
    assert packed == {True, False}
    least = dict[object, float]()
    for choice in islice(rank_all(CONTEXT, 400), 2000):
        least.setdefault(kind_of(choice.schedule), choice.cost)
    known = {choice.schedule for choice in few}
    others = [choice for choice in many if choice.schedule not in known]
    costs = [(choice.cost, least.get(kind_of(choice.schedule))) for choice in others]
    assert sum(cost == of_kind for cost, of_kind in costs) > len(others) // 2
    assert all(of_kind is None or cost == of_kind for cost, of_kind in costs)


def test_a_kind_leaves_out_sizes_alone() -> None:
    kinds = [
        kind_of(Schedule.parse(f"{text} > brgemm_avx512_f32_14x32"))
        for text in ("p:4 k:64 p q:14", "p:2 k:32 p q:7", "p:2 pack(A) k:32 p q:7", "k:32 p q:7")
    ]
    assert kinds[0] == kinds[1] and len({*kinds}) == 3


@given(arrays(np.int64, st.integers(0, 40), elements=st.integers(0, 5)))
def test_turns_count_what_came_before(kinds: np.ndarray) -> None:
    expected = [list(kinds[:at]).count(kind) for at, kind in enumerate(kinds)]
    assert turns(kinds).tolist() == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_many_schedules_are_predicted_as_each_of_them(threads: int) -> None:
    context = samples.fixed_context(Matmul(192, 256, 320), threads)
    schedules = [choice.schedule for choice in choices(context, 12, kinds=8)]
    parts = list(part_forms(context, schedules))
    plain = plain_choices(context, 12, tiles=8, blocks=2)
    assert parts and plain
    forms = [*plain, *schedules, *parts]
    assert predict_all(context, forms) == [predict_seconds(context, form) for form in forms]
