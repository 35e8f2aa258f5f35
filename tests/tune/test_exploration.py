"""What a search measures next: every kind that may win first, then the best kind's neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polysci.lower.algorithm import Candidate
from polysci.space.schedule import Schedule
from polysci.target.machine import assume_rates
from polysci.tune.result import Trial
from polysci.tune.trials import COMMON, choose_next, properties
from tests.support.samples import FIXED

MACHINE = assume_rates(FIXED)
TILE = "brgemm_avx512_f32_14x32"
PLAIN = [f"p:{step} k:32 p q:14 > {TILE}" for step in (2, 3, 4, 6, 8, 12)]
PACKED = [f"p:{step} pack(A)+16 k:32 p q:14 > {TILE}" for step in (2, 3, 4, 6, 8, 12)]


def candidates(texts: list[str], seconds: float) -> list[Candidate]:
    """Candidates that the model predicts a little slower one after the other."""
    return [
        Candidate(Schedule.parse(text), seconds * (1 + at / 1000)) for at, text in enumerate(texts)
    ]


def tried(candidate: Candidate, seconds: float) -> Trial:
    return Trial(candidate.schedule, candidate.seconds, seconds)


def texts(chosen: list[Candidate]) -> list[str]:
    return [str(candidate.schedule) for candidate in chosen]


def test_a_kind_that_is_a_little_slower_to_the_model_is_tried_early() -> None:
    pool = [*candidates(PLAIN, 1.0), *candidates(PACKED, 1.1)]
    assert {*texts(choose_next([], pool, 2, MACHINE))} == {PLAIN[0], PACKED[0]}


def test_what_the_model_calls_much_slower_is_not() -> None:
    pool = [*candidates(PLAIN, 1.0), *candidates(PACKED, 3.0)]
    assert not {*texts(choose_next([], pool, 6, MACHINE))} & {*PACKED}


@pytest.mark.parametrize("better", [PLAIN, PACKED])
def test_the_kind_that_measured_better_is_refined(better: list[str]) -> None:
    pool = [*candidates(PLAIN, 1.0), *candidates(PACKED, 1.1)]
    measured = [
        tried(candidate, 1.0 if str(candidate.schedule) in better else 1.6)
        for candidate in (pool[0], pool[6])
    ]
    untried = [candidate for candidate in pool if candidate not in (pool[0], pool[6])]
    assert {*texts(choose_next(measured, untried, 4, MACHINE))} <= {*better}


def test_an_error_that_all_have_in_common_changes_nothing() -> None:
    pool = [*candidates(PLAIN, 1.0), *candidates(PACKED, 1.1)]
    measured, untried = [tried(pool[0], 5.0)], pool[1:]
    assert texts(choose_next(measured, untried, 1, MACHINE)) == [PACKED[0]]


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 14))
def test_each_is_chosen_once(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    pool = [
        Candidate(Schedule.parse(text), float(seconds))
        for text, seconds in zip(
            [*PLAIN, *PACKED], rng.uniform(1, 2, len(PLAIN + PACKED)), strict=True
        )
    ]
    cut = int(rng.integers(0, 5))
    measured = [tried(candidate, float(rng.uniform(1, 3))) for candidate in pool[:cut]]
    chosen = texts(choose_next(measured, pool[cut:], count, MACHINE))
    assert len(chosen) == len({*chosen}) == min(count, len(pool) - cut)
    assert not {*chosen} & {*texts(pool[:cut])}


def test_properties_name_what_schedules_share() -> None:
    schedule = Schedule.parse(f"p:4* k:64 pack(A)+16 p q:14 k:32 stream(C) > {TILE}")
    names = [*properties(schedule)]
    assert len(names) == len({*names}) and COMMON in names
    assert {"columns 32", "packed True", "stream(C) True", "outermost p"} <= {*names}
    assert {"blocks of p", "blocks of k", "parallel p", "order p k Pack p q k"} <= {*names}
    other = Schedule.parse(f"p:2* k:128 pack(A) p q:14 k:32 stream(C) > {TILE}")
    assert names == [*properties(other)]
