"""Blocks of C along a generalised Hilbert curve: the curve itself, and code that follows it."""

import numpy as np
import pytest

from polysci.cost import Context, shortlist
from polysci.cost.curve_groups import NEAR, best_curve, curve_forms
from polysci.errors import IllegalScheduleError, SpecError, UnsupportedError
from polysci.lower.choice import candidates
from polysci.measure.check import check
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.runtime.build import cache
from polysci.runtime.build.library import load
from polysci.runtime.source import emit
from polysci.space.directives import Hilbert
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.target.microkernels import header

KERNEL = "brgemm_portable_f32_6x8"
WALK = "void walk(int64_t rows, int64_t columns, int64_t *places);"


def test_a_curve_visits_every_block_once_and_then_a_neighbour() -> None:
    code = (
        "#include <stdint.h>\n#define PS_SCALAR static\n"
        + header("hilbert")
        + f"\n{WALK[:-1]} {{ for (int64_t i = 0; i < rows * columns; ++i)"
        " places[i] = ps_hilbert(i, rows, columns); }\n"
    )
    library = load(cache.build(code, symbols=("walk",)), WALK)
    for rows, columns in [(1, 9), (9, 1), (8, 8), (5, 7), (13, 4), (3, 31), (27, 29)]:
        places = np.zeros(rows * columns, np.int64)
        library.lib.walk(rows, columns, library.ffi.cast("int64_t *", places.ctypes.data))
        assert sorted(places) == list(range(rows * columns))
        steps = np.abs(np.diff(places // columns)), np.abs(np.diff(places % columns))
        assert np.max(steps, initial=0) <= 1
        diagonal = np.sum(steps[0] + steps[1] == 2)
        assert diagonal == 0 if rows * columns % 2 == 0 and rows == columns else diagonal <= 2


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("loops", "threads"),
    [
        ("i:24 j:64 i:6 j:8", 1),
        ("i:24* j:64* i:6 j:8", 2),
        ("j:64* i:24* pack(A) k:35 i:6 j:8", 2),
    ],
)
def test_code_is_right(loops: str, threads: int) -> None:
    problem = parse_problem("mm:100x70x300 b=constant")
    schedule = Schedule.parse(f"hilbert(C) {loops} > {KERNEL}")
    assert Schedule.parse(str(schedule)) == schedule
    assert "ps_hilbert(task, 5, 5)" in emit(problem, schedule, threads).text
    for verdict in check(problem, [schedule], threads):
        assert verdict.passed, verdict.fault


@pytest.mark.parametrize(
    ("loops", "message"),
    [
        ("i:6", "two outermost loops"),
        ("i:24 i:6 j:8", "over different dimensions"),
        ("i:24* j:64 i:6 j:8", "both parallel or neither"),
        ("i:24 pack(A) j:64 i:6 j:8", "nothing is packed between"),
        ("i:24 j:64 i:6 j:8 ahead(B)", "follows the order of loops"),
    ],
)
def test_what_follows_no_curve_is_refused(loops: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        emit(
            parse_problem("mm:100x70x300 b=constant"),
            Schedule.parse(f"hilbert(C) {loops} > {KERNEL}"),
        )


def test_the_model_takes_a_curve_as_its_best_squares() -> None:
    problem = parse_problem("mm:2048x256x2048 b=constant")
    _, roles, strides = model_of(problem)
    target = detect("portable")
    context = Context(roles, strides, target, assume_rates(target), 1)
    nest = Schedule.parse(f"i:24 j:32 i:6 j:8 > {KERNEL}")
    squares = Schedule.parse(f"i:96 j:128 i:24 j:32 i:6 j:8 > {KERNEL}")
    curve = shortlist.predict_seconds(context, nest.having(Hilbert()))
    assert curve < shortlist.predict_seconds(context, nest)
    assert curve <= shortlist.predict_seconds(context, squares)


def test_a_reduction_follows_no_curve() -> None:
    schedule = Schedule.parse(f"hilbert(C) i:24 k:35 i:6 j:8 > {KERNEL}")
    with pytest.raises((IllegalScheduleError, UnsupportedError), match="curve k:35"):
        emit(parse_problem("mm:100x70x300 b=constant"), schedule)


@pytest.mark.parametrize("threads", [1, 2])
def test_searches_try_the_best_curve(threads: int) -> None:
    problem, target = parse_problem("mm:1024x1024x1024 b=constant"), detect("portable")
    _, roles, strides = model_of(problem)
    context = Context(roles, strides, target, assume_rates(target), threads)
    ranked = candidates(problem, context, 6)
    loops = next(option for option in ranked if not option.schedule.has(Hilbert))
    every = [*curve_forms(context, loops.schedule)]
    prices = {form: shortlist.predict_seconds(context, form) for form in every}
    ((best, seconds),) = best_curve(context, loops.schedule, np.inf)
    assert seconds == pytest.approx(prices[best]) == pytest.approx(min(prices.values()))
    emit(problem, best, threads)  # which checks that it is legal
    near = seconds <= NEAR * loops.seconds
    assert [option.schedule for option in ranked if option.schedule.has(Hilbert)] == [best] * near
    assert not [*best_curve(context, loops.schedule, seconds / NEAR / 1.01)]


def test_nothing_else_follows_a_curve() -> None:
    for text in ("mm:96x64x96", "mm:4:512x512x512", "mb1ic64ih56oc64kh3ph1", "mm:6x4096x4096"):
        _, roles, strides = model_of(problem := parse_problem(text))
        target = detect("portable")
        context = Context(roles, strides, target, assume_rates(target), 1)
        ranked = candidates(problem, context, 1)
        assert not [*curve_forms(context, ranked[0].schedule)], text
