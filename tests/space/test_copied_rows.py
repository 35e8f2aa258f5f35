"""Words of two bf16 from rows of A and of B: gradients of filters, products of a transposed A."""

import pytest

from polysci.cost import Context
from polysci.errors import UnsupportedError
from polysci.explain import loop_comments
from polysci.lower.choice import candidates
from polysci.measure.check import check
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.runtime.source import emit
from polysci.space.directives import Private
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.target.microkernels import lanes

# Even and odd numbers of images; padding, strides, dilation; k of words and one more.
EVEN, ODD = "bwd_w mb4ic19ih7oc37oh7kh1ph0", "bwd_w mb5ic19ih7oc37oh7kh3ph1"
STRIDED = "bwd_w mb7ic9ih13oc17oh5kh3sh2dh1ph0"
CASES = [
    (EVEN, "pack(A) k:{} c:6", 1),
    (EVEN, "private(C) p pack(A) pack(B) k:{} c:6", 1),
    (EVEN, "private(C) n:2 p:3 pack(A) pack(B) c:6 k:{}", 1),
    (EVEN, "private(C) k:{}* p:2 pack(A) pack(B) c:6", 2),
    (EVEN, "private(C) p:4* pack(A) pack(B) k:{} c:6", 2),
    (ODD, "pack(A) k:{} c:6 r s", 1),
    (ODD, "private(C) p:2 pack(A) pack(B) k:{} c:12 c:6 r s", 1),
    (ODD, "private(C) n:4 pack(B) k:{} pack(A) c:6 r s", 1),
    (STRIDED, "private(C) n:2 p pack(A) pack(B) k:{} c:6 r s", 1),
    (STRIDED, "private(C) n:4* p:4 pack(A) pack(B) k:{} c:6 r s", 2),
    ("mm:50x70x301 ta", "private(C) k:24 pack(A) pack(B) i:6 j:{}", 1),
    ("mm:50x70x301 ta", "i:30* pack(A) i:6 j:{}", 2),
    ("mm:2:50x70x33 ta", "private(C) t k:10 pack(B) pack(A) i:6 j:{}", 1),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("text", "loops", "threads"), CASES)
@pytest.mark.isa("avx512bf16")
def test_code_is_right(text: str, loops: str, threads: int) -> None:
    """Also of a last word that lacks an element, and of rows of padding."""
    problem, width = parse_problem(text, dtype="bf16"), lanes("avx512bf16")
    schedule = Schedule.parse(f"{loops.format(width)} > brgemm_avx512bf16_bf16_6x{width}")
    text = emit(problem, schedule, threads).text
    assert "ps_pack_pairs(box" in text and ("pack(B)" not in loops or "ps_part_pair(panels" in text)
    for verdict in check(problem, [schedule], threads):
        assert verdict.passed, verdict.fault


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("text", "loops"),
    [
        ("mm:13x33x50 tb", "j:{} i:6"),
        ("mm:13x64x48 tb", "j:{} i:6"),
        ("mm:7x3x17 tb", "j:{} i:6"),
        ("mm:2:13x301x21 tb", "t j:{} i:6"),
        ("mb2ic19ih7oc37oh7kh1ph0", "n k:{} p q:6"),
    ],
)
@pytest.mark.isa("avx512bf16")
def test_blocks_of_words_turn_over(text: str, loops: str) -> None:
    """Where columns of B lie apart; of tails, and of a last word that lacks an element."""
    problem, width = parse_problem(text, dtype="bf16"), lanes("avx512bf16")
    schedule = Schedule.parse(f"{loops.format(width)} > brgemm_avx512bf16_bf16_6x{width}")
    assert "ps_panel_turned_pairs(to" in emit(problem, schedule).text
    for verdict in check(problem, [schedule], 1):
        assert verdict.passed, verdict.fault


@pytest.mark.parametrize(
    ("kernel", "rows"), [("neonbf16_bf16_6x8", True), ("amx_bf16_16x32", False)]
)
def test_tile_registers_alone_want_rows_of_words(kernel: str, rows: bool) -> None:
    problem = parse_problem("bwd_w mb16ic64ih56oc64oh56kh1ph0", dtype="bf16")
    columns = kernel.rpartition("x")[2]
    text = emit(problem, Schedule.parse(f"pack(A) k:{columns} c:6 > brgemm_{kernel}")).text
    assert ("ps_pack_pairs(box" in text) == rows and "ps_panel_pairs(to" in text


@pytest.mark.isa("avx512bf16")
def test_searches_keep_sums_of_a_narrow_result() -> None:
    problem = parse_problem("bwd_w mb16ic64ih56oc64oh56kh1ph0", dtype="bf16")
    _, roles, strides = model_of(problem)
    target = detect("avx512bf16")
    (best, *_) = candidates(problem, Context(roles, strides, target, assume_rates(target), 1), 3)
    assert best.schedule.has(Private) and "ps_pack_pairs(box" in emit(problem, best.schedule).text


@pytest.mark.parametrize(
    ("text", "loops", "message"),
    [
        (EVEN, "p pack(A) k:16 c:6", "cannot keep partial sums"),
        (EVEN, "private(C) pack(A) k:16 c:6", "no parallel loop runs over a reduction"),
        (EVEN, "private(C) n:3 pack(A) k:16 c:6", "n:3 is no multiple of the 2 steps"),
        (EVEN, "private(C) p pack(A)+32 k:16 c:6", "side by side without padding"),
        ("mm:64x64x64 tb", "private(C) k:32 pack(B) i:6 j:16", "steps of j lie apart in B"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, loops: str, message: str) -> None:
    problem = parse_problem(text, dtype="bf16")
    with pytest.raises(UnsupportedError, match=message):
        emit(problem, Schedule.parse(f"{loops} > brgemm_avx512bf16_bf16_6x16"))


def test_comments_tell_of_the_copy() -> None:
    problem = parse_problem(EVEN, dtype="bf16")
    schedule = Schedule.parse("private(C) p pack(A) k:16 c:6 > brgemm_avx512bf16_bf16_6x16")
    (whole, *_) = loop_comments(model_of(problem)[1], schedule, (32 << 10, 1 << 20, 8 << 20))
    assert whole.endswith("partial sums of w are kept in a copy")
