"""Conv2dBackwardWeights: its text, its references, and code that loops over taps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci.algorithms.choice import candidates
from polysci.algorithms.lowering import model_of
from polysci.errors import SpecError, UnsupportedError
from polysci.measure.check import check
from polysci.ops import Conv2d, Conv2dBackwardWeights, parse_key, parse_problem
from polysci.ops.problem import operands
from polysci.polyhedral import schedule
from polysci.rank import Context
from polysci.target.host import detect
from polysci.target.machine import assume_rates

CASES = {
    "padded": "bwd_w mb2ic5ih7oc9kh3ph1",
    "strided": "bwd_w mb1ic6ih9iw8oc7oh5ow4kh3kw2sh2sw2ph1pw0",
    "dilated": "bwd_w mb1ic3ih9oc4kh3ph2dh1",
    "grouped": "bwd_w g3mb2ic6ih6oc9kh3ph1",
    "one by one": "bwd_w mb3ic19ih5oc20kh1",
    "cropped": "bwd_w mb1ic3ih9oc4oh4kh3ph0",
}


@given(
    st.builds(
        Conv2d,
        *(st.integers(1, 5),) * 2,
        *(st.integers(9, 20),) * 2,
        *(st.integers(1, 5),) * 3,
        pad=st.integers(0, 3),
        layout=st.sampled_from(["nhwc", "nchw"]),
        dtype=st.sampled_from(["f32", "bf16"]),
        name=st.sampled_from(["", "res2a", "a b"]),
        multiplicity=st.integers(1, 9),
    )
)
def test_round_trip(conv: Conv2d) -> None:
    problem = Conv2dBackwardWeights(conv)
    assert parse_problem(str(problem), conv.layout, conv.dtype) == problem
    assert parse_key(problem.key) == problem.with_(name="", multiplicity=1)


def test_a_caret_points_at_what_is_wrong() -> None:
    with pytest.raises(SpecError, match="kh is missing") as refused:
        parse_problem("bwd_w ic3ih8oc4", where="net.txt:2")
    lines = str(refused.value).splitlines()
    assert lines[0].startswith("net.txt:2:10: ") and lines[2] == f"    {' ' * 9}^"
    with pytest.raises(SpecError, match="N=0 must be positive"):
        parse_problem("bwd_w mb0ic3ih8oc4kh3")
    with pytest.raises(UnsupportedError, match="gradients are computed from reals"):
        parse_problem("bwd_w ic3ih8oc4kh3", dtype="int8")
    with pytest.raises(TypeError, match="forward must be a Conv2d"):
        Conv2dBackwardWeights("ic3ih8oc4kh3")  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_the_gradient_is_that_of_the_convolution(words: str, layout: str) -> None:
    problem, random = parse_problem(words, layout), np.random.default_rng(0)
    assert isinstance(problem, Conv2dBackwardWeights)
    x, dy = (random.integers(-4, 5, one.shape) for one in operands(problem)[:2])
    gradient = problem.reference(x, dy)
    for at in zip(*(random.integers(0, size, 8) for size in problem.y_shape), strict=True):
        w = np.zeros(problem.y_shape, np.int64)
        w[at] = 1
        assert gradient[at] == (problem.forward.reference(x, w) * dy).sum()


def test_the_roles_follow_from_the_accesses() -> None:
    _, roles, _ = model_of(parse_problem("bwd_w mb4ic5ih7oc9kh3ph1"))
    assert str(roles) == "m=(c,r,s) n=k br=(n,p,q)"
    assert roles.packs_b and roles.padded
    assert (roles.a.array, roles.b.array, roles.out.array) == ("I", "O", "W")


def test_words_of_pixels_are_of_several_images() -> None:
    """Neighbours in a word must have the same padding, whatever the tap."""
    _, roles, _ = model_of(parse_problem("bwd_w mb4ic5ih7oc9kh3ph1", dtype="bf16"))
    assert str(roles) == "m=(c,r,s) n=k k=n br=(p,q)"


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_code_of_the_first_choice_is_right(words: str, isa: str) -> None:
    if isa not in {own.name for own in detect().runnable}:
        pytest.skip(f"this CPU lacks {isa}")
    layout = "nchw" if len(words) % 2 else "nhwc"
    problem, target, threads = parse_problem(words, layout), detect(isa), 1 + len(words) % 2
    _, roles, strides = model_of(problem)
    context = Context(roles, strides, target, assume_rates(target), threads)
    (choice,) = candidates(problem, context, 1)
    for verdict in check(problem, [choice.schedule], threads):
        assert verdict.passed, verdict.fault


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ("bwd_w mb2ic5ih20oc9kh3ph1", "r s p:7 c:4"),  # a ragged block of rows, cut by the padding
        ("bwd_w mb2ic5ih20oc9kh3ph1", "p q:6 r s c:4"),
        ("bwd_w mb40ic5ih6oc9kh3ph1", "n:16 p:2 r s c:4"),
        ("bwd_w mb2ic5ih20oc9kh1", "p:9 pack(A) q:6 c:4"),
        ("bwd_w mb1ic4ih20oc9kh3ph1", "c s"),  # 18 values of p with equal rows: a loop
    ],
)
def test_taps_may_be_looped(words: str, steps: str) -> None:
    problem = parse_problem(words)
    plan = schedule.parse(f"k:8 {steps} > brgemm_portable_f32_4x8")
    for verdict in check(problem, [plan]):
        assert verdict.passed, verdict.fault


def test_a_loop_over_taps_that_padding_cuts_needs_one_row() -> None:
    problem = parse_problem("bwd_w mb1ic4ih20oc9kh3ph1")
    plan = schedule.parse("k:8 p:4 c s > brgemm_portable_f32_4x8")
    with pytest.raises(UnsupportedError, match="a loop over 'p' needs one position of 'r'"):
        next(check(problem, [plan]))
