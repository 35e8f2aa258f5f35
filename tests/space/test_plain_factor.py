"""Products of two factors that change from call to call, with B read where it lies."""

from dataclasses import replace

import pytest

from polysci.algorithms.choice import candidates
from polysci.algorithms.lowering import emit, model_of
from polysci.errors import UnsupportedError
from polysci.measure.check import check
from polysci.ops import parse_problem
from polysci.polyhedral.schedule import Schedule
from polysci.rank import Context, shortlist
from polysci.target.host import detect
from polysci.target.machine import assume_rates


@pytest.mark.parametrize(
    ("text", "loops", "threads"),
    [
        ("mm:2:50x70x300", "t i:6 j:8 > brgemm_portable_f32_6x8", 1),
        ("mm:50x70x301 ta", "j:64* i:6 j:8 > brgemm_portable_f32_6x8", 2),
        ("mm:1x70x301", "k:35 j:8 > brgemm_portable_f32_1x8", 1),
        ("mm:50x70x301 alpha=0.5", "pack(A) j:8 i:6 > brgemm_portable_f32_6x8", 1),
    ],
)
def test_code_is_right(text: str, loops: str, threads: int) -> None:
    problem, schedule = parse_problem(text), Schedule.parse(f"plain(B) {loops}")
    assert Schedule.parse(str(schedule)) == schedule
    source = emit(problem, schedule, threads)
    assert "_pack_b" not in source.text and "ps_run_plain" in source.text
    for verdict in check(problem, [schedule], threads):
        assert verdict.passed, verdict.fault


@pytest.mark.parametrize(
    ("text", "dtype", "kernel", "message"),
    [
        ("mm:8x8x8 b=constant", "f32", "brgemm_portable_f32_6x8", "is packed ahead"),
        ("mm:8x8x8 tb", "f32", "brgemm_portable_f32_6x8", "are not neighbours"),
        ("mm:8x8x8", "bf16", "brgemm_portable_f32_6x8", "only products of f32"),
    ],
)
def test_what_needs_panels_is_refused(text: str, dtype: str, kernel: str, message: str) -> None:
    problem = parse_problem(text, dtype=dtype)
    with pytest.raises(UnsupportedError, match=message):
        emit(problem, Schedule.parse(f"plain(B) i:6 j:8 > {kernel}"))


@pytest.mark.parametrize(("rows", "plain"), [(1, True), (256, False)])
def test_few_rows_are_not_worth_packing(rows: int, plain: bool) -> None:
    problem = parse_problem(f"mm:{rows}x1024x1024")
    _, roles, strides = model_of(problem)
    target = detect("portable")
    context = Context(roles, strides, target, assume_rates(target), 1)
    best, *others = candidates(problem, context, 3)
    assert best.schedule.plain == plain
    assert len(others) == 2 and best.seconds <= others[0].seconds
    if plain:
        packed = replace(best.schedule, plain=False)
        assert best.seconds < shortlist.predict_seconds(context, packed)
