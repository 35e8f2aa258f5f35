"""Products whose second factor changes from call to call, with B packed part by part."""

from dataclasses import replace

import pytest

from polysci.cost import Context, shortlist
from polysci.errors import SpecError, UnsupportedError
from polysci.lower.choice import candidates
from polysci.measure.check import check
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.runtime.source import emit
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.target.microkernels import lanes
from polysci.target.target import MIB
from tests.support.samples import FIXED, fixed_context

GRADIENT = "bwd_w mb3ic13ih9oc20oh9kh1ph0"
ONE_IMAGE = "bwd_w mb1ic13ih9oc20oh9kh3ph1"
STRIDED = "bwd_w mb2ic9ih11oc17oh6kh3sh2ph1"


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("text", "loops", "threads"),
    [
        ("mm:50x70x300", "k:32 pack(B) j:{} i:6", 1),
        ("mm:50x70x300 tb", "j:{wide} k:35 pack(B) pack(A) i:6 j:{}", 1),
        ("mm:50x70x301 ta", "i:30* j:{wide}* k:24 pack(B) i:6 j:{}", 2),
        ("mm:2:50x70x300", "t j:{wide} pack(B) i:6 j:{}", 1),
        ("mm:5x700x30", "private(C) k:350* k:35 pack(B) i:5 j:{}", 2),
        (GRADIENT, "n p:4 pack(A) pack(B) k:{} c:6", 1),
        (GRADIENT, "n:2 k:{} pack(B) c:6", 1),
        (GRADIENT, "private(C) n* p:2 pack(B) k:{} c:6", 2),
        (STRIDED, "n p pack(B) k:{} r c:6 s", 1),
        (ONE_IMAGE, "p:4 pack(A) pack(B) k:{} r c:6 s", 1),
        (STRIDED, "c:6* k:{}* pack(B) r s", 2),
    ],
)
@pytest.mark.parametrize(
    "isa",
    ["portable", *(pytest.param(isa, marks=pytest.mark.isa(isa)) for isa in ("avx2", "avx512"))],
)
def test_code_is_right(text: str, loops: str, threads: int, isa: str) -> None:
    """Also of last parts that are smaller, of strides, and where each thread has its own panels."""
    problem, width = parse_problem(text), lanes(isa)
    rows = 5 if "i:5" in loops else 6
    loops = loops.format(width, wide=4 * width)
    schedule = Schedule.parse(f"{loops} > brgemm_{isa}_f32_{rows}x{width}")
    assert Schedule.parse(str(schedule)) == schedule
    source = emit(problem, schedule, threads)
    whole = emit(problem, Schedule.parse(str(schedule).replace(" pack(B)", "")), threads)
    assert source.workspace < whole.workspace or threads > 1 or "mm:2:" in text
    for verdict in check(problem, [schedule], threads):
        assert verdict.passed, verdict.fault


@pytest.mark.parametrize(
    ("text", "dtype", "loops", "message"),
    [
        ("mm:8x8x8 b=constant", "f32", "k:4 pack(B) i:6 j:8", "is packed ahead"),
        ("mm:8x8x8", "bf16", "private(C) k:4 pack(B) i:6 j:8", "only products of f32"),
        ("mm:3:8x8x8", "f32", "k:4 pack(B) t i:6 j:8", "several positions of t"),
        ("mm:8x8x8 ta tb", "f32", "k:4 pack(B) i:6 j:8", ""),
    ],
)
def test_what_cannot_be_packed_in_parts_is_refused(
    text: str, dtype: str, loops: str, message: str
) -> None:
    problem = parse_problem(text, dtype=dtype)
    schedule = Schedule.parse(f"{loops} > brgemm_portable_f32_6x8")
    if message:
        with pytest.raises(UnsupportedError, match=message):
            emit(problem, schedule)
    else:
        assert "_pack_b" in emit(problem, schedule).text


@pytest.mark.parametrize(
    ("loops", "message"),
    [
        ("pack(B) k:4 i:6 j:8", "it stands inside a loop"),
        ("i:6* pack(B) j:8*", "between parallel loops"),
        ("plain(B) k:4 pack(B) i:6 j:8", r"plain\(B\) needs B as a whole"),
        ("k:4 pack(B) i:6 j:8 ahead(B)", r"ahead\(B\) needs B as a whole"),
        ("k:4 pack(B) i:6 pack(B) j:8", "one packing of each at most"),
        ("k:4 pack(B)+16 i:6 j:8", "is neither a loop"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(loops: str, message: str) -> None:
    problem = parse_problem("mm:8x8x8")
    with pytest.raises(SpecError, match=message):
        emit(problem, Schedule.parse(f"{loops} > brgemm_portable_f32_6x8"))


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("text", "parts"),
    [("bwd_w mb16ic64ih56oc256oh56kh1ph0", True), ("mm:64x64x64", False)],
)
def test_large_factors_are_worth_copying_in_parts(text: str, parts: bool) -> None:
    problem = parse_problem(text)
    _, roles, strides = model_of(problem)
    target = detect("portable")
    context = Context(roles, strides, target, assume_rates(target), 1)
    best, *_ = candidates(problem, context, 3)
    assert best.schedule.packs_parts_of_b == parts
    seconds = shortlist.predict_seconds(context, best.schedule)
    assert seconds == pytest.approx(best.seconds)
    if parts:
        whole = Schedule.parse(str(best.schedule).replace(" pack(B)", ""))
        assert seconds < shortlist.predict_seconds(context, whole)


def test_first_choices_have_code_where_no_columns_are_neighbours() -> None:
    problem = parse_problem("bwd_w mb16ic256ih56oc64oh56kh1ph0", "nchw")
    for choice in candidates(problem, fixed_context(problem), 3):
        emit(problem, choice.schedule)


def test_a_copy_of_all_of_b_crowds_the_last_level() -> None:
    """So copying parts gains more the less L3 exceeds the problem, until twice both fit."""
    problem = parse_problem("bwd_w mb1ic64ih56oc256oh56kh1ph0")  # 3.9 MiB, and panels of 3.1
    loops = ("pack(A) k:16 c:16", "pack(A) pack(B) k:16 c:16")
    whole, parts = (Schedule.parse(f"p:28 {its} > brgemm_avx512_f32_16x16") for its in loops)
    gains = []
    for mebibytes in (8, 10, 16, 64):
        *near, last = FIXED.memories
        memories = (*near, replace(last, size=mebibytes * MIB))
        context = fixed_context(problem, 1, replace(FIXED, memories=memories))
        seconds = shortlist.predict_all(context, [whole, parts])
        gains.append(seconds[0] - seconds[1])
    assert gains[0] > gains[1] + 10e-6 > gains[2] + 20e-6
    assert gains[2] == pytest.approx(gains[3])


def test_each_turn_of_parallel_loops_that_leave_b_alone_copies_its_part_again() -> None:
    problem = parse_problem("mm:2048x2048x256")
    _, roles, strides = model_of(problem)
    target = detect("portable")
    context = Context(roles, strides, target, assume_rates(target), 2)
    few, many = (
        shortlist.predict_seconds(
            context, Schedule.parse(f"i:{rows}* k:256 pack(B) i:4 j:8 > brgemm_portable_f32_4x8")
        )
        for rows in (1024, 32)
    )
    assert many > 1.1 * few


@pytest.mark.parametrize(
    ("text", "loops"),
    [
        pytest.param(GRADIENT, "n p:4", marks=pytest.mark.exhaustive),
        (GRADIENT.replace("mb3", "mb1"), "p:4"),
    ],
)
def test_copies_of_channels_lie_in_panels(text: str, loops: str) -> None:
    """A call reads the channels of its rows alone, in pixels that follow each other."""
    problem = parse_problem(text)
    schedule = Schedule.parse(f"{loops} pack(A) k:8 c:6 > brgemm_portable_f32_6x8")
    code = emit(problem, schedule).text
    assert ".panel = 6, .panel_size = 216" in code and "A, B, 36, 6)" in code
    for verdict in check(problem, [schedule]):
        assert verdict.passed, verdict.fault
