"""Products of two factors that change from call to call, with B read where it lies."""

import pytest

from polysci.cost import Context, shortlist
from polysci.errors import UnsupportedError
from polysci.lower.choice import candidates
from polysci.measure.check import check
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.runtime.source import emit
from polysci.space.directives import Plain
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.target.microkernels import lanes


@pytest.mark.exhaustive
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


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("text", "loops", "rows", "vectors"),
    [
        ("mm:1x71x37 tb", "j:{}", 1, 1),
        ("mm:5x70x53 tb", "k:35 i:2 j:{}", 2, 1),
        ("mm:3x3x53 tb alpha=0.5", "i:3 j:{}", 3, 2),
        ("mm:2:21x33x50 tb", "t j:{} i:6", 6, 2),
        ("mm:50x70x1", "i:13", 13, 1),
        ("mm:50x69x1 b=constant act=relu", "i:4", 4, 1),
    ],
)
@pytest.mark.parametrize(
    "isa",
    ["portable", *(pytest.param(isa, marks=pytest.mark.isa(isa)) for isa in ("avx2", "avx512"))],
)
def test_dots_are_right(text: str, loops: str, rows: int, vectors: int, isa: str) -> None:
    """Where steps of k are neighbours in both factors, they run along the lanes."""
    problem, width = parse_problem(text), vectors * lanes(isa)
    kernel = f"brgemm_{isa}_f32_{rows}x{width}"
    schedule = Schedule.parse(f"plain(B) {loops.format(width)} > {kernel}")
    assert "ps_run_dots" in emit(problem, schedule).text
    for verdict in check(problem, [schedule]):
        assert verdict.passed, verdict.fault


@pytest.mark.parametrize(
    ("text", "dtype", "kernel", "message"),
    [
        ("mm:8x8x8 b=constant", "f32", "brgemm_portable_f32_6x8", "is packed ahead"),
        ("mm:8x8x8 ta tb", "f32", "brgemm_portable_f32_6x8", "nor rows of both factors"),
        ("mm:8x8x8", "bf16", "brgemm_portable_f32_6x8", "only products of f32"),
    ],
)
def test_what_needs_panels_is_refused(text: str, dtype: str, kernel: str, message: str) -> None:
    problem = parse_problem(text, dtype=dtype)
    with pytest.raises(UnsupportedError, match=message):
        emit(problem, Schedule.parse(f"plain(B) i:6 j:8 > {kernel}"))


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("mm:1x1024x1024", True),
        ("mm:256x1024x1024", False),
        ("mm:2x1024x1024 tb", True),
        ("mm:1024x1024x1024 tb", False),
        ("mm:2048x128x1 b=constant", True),
    ],
)
def test_few_rows_are_not_worth_packing(text: str, plain: bool) -> None:
    problem = parse_problem(text)
    _, roles, strides = model_of(problem)
    target = detect("portable")
    context = Context(roles, strides, target, assume_rates(target), 1)
    best, *others = candidates(problem, context, 3)
    assert best.schedule.has(Plain) == plain
    assert len(others) == 2 and best.seconds <= others[0].seconds
    if plain:
        packed = best.schedule.without(Plain)
        assert best.seconds < shortlist.predict_seconds(context, packed)
