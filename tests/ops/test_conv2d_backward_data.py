"""Conv2dBackwardData: its text, its reference, its nests, and the code of both."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from polysci.algorithms.choice import candidates
from polysci.algorithms.lowering import model_of
from polysci.errors import SpecError, UnsupportedError
from polysci.measure.check import check
from polysci.ops import Conv2d, Conv2dBackwardData, parse_key, parse_problem
from polysci.ops.problem import operands
from polysci.rank import Context
from polysci.target.host import detect
from polysci.target.machine import assume_rates

DENSE = {
    "padded": "bwd_d mb2ic5ih7oc9kh3ph1",
    "not padded": "bwd_d mb1ic20ih9iw8oc7kh3kw2ph0pw0",
    "padded beyond its reach": "bwd_d mb1ic5ih6oc4kh2ph4",
    "dilated": "bwd_d mb1ic3ih9oc4kh3ph2dh1",
    "grouped": "bwd_d g3mb2ic6ih6oc9kh3ph1",
    "depthwise": "bwd_d g20mb1ic20ih8oc20kh3ph1",
    "one by one": "bwd_d mb3ic19ih5oc20kh1",
    "cropped": "bwd_d mb1ic3ih9iw8oc4oh4ow3kh3kw3ph0pw0",
}
STRIDED = {
    "strided": "bwd_d mb1ic6ih9iw8oc7kh3kw2sh2sw2ph1pw0",
    "strided one by one": "bwd_d mb2ic19ih6oc20kh1sh2ph0",
}
GRADIENTS = DENSE | STRIDED


@given(
    st.builds(
        Conv2d,
        *(st.integers(0, 5), st.integers(1, 5)),
        *(st.integers(9, 20),) * 2,
        *(st.integers(1, 5),) * 3,
        stride=st.integers(1, 3),
        pad=st.integers(0, 3),
        layout=st.sampled_from(["nhwc", "nchw"]),
        dtype=st.sampled_from(["f32", "bf16"]),
        name=st.sampled_from(["", "res2a", "a b"]),
        multiplicity=st.integers(1, 9),
    )
)
def test_round_trip(conv: Conv2d) -> None:
    problem = Conv2dBackwardData(conv)
    assert parse_problem(str(problem), conv.layout, conv.dtype) == problem
    assert parse_key(problem.key) == problem.with_(name="", multiplicity=1)


def test_a_caret_points_at_what_is_wrong() -> None:
    with pytest.raises(SpecError, match="kh is missing") as refused:
        parse_problem("bwd_d ic3ih8oc4", where="net.txt:2")
    lines = str(refused.value).splitlines()
    assert lines[0].startswith("net.txt:2:10: ") and lines[2] == f"    {' ' * 9}^"
    with pytest.raises(UnsupportedError, match="gradients are computed from reals"):
        parse_problem("bwd_d ic3ih8oc4kh3", dtype="int8")
    with pytest.raises(TypeError, match="Conv2dBackwardData: forward must be a Conv2d"):
        Conv2dBackwardData("ic3ih8oc4kh3")  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("words", GRADIENTS.values(), ids=GRADIENTS)
def test_the_gradient_is_that_of_the_convolution(words: str, layout: str) -> None:
    problem, random = parse_problem(words, layout), np.random.default_rng(0)
    assert isinstance(problem, Conv2dBackwardData)
    dy, w = (random.integers(-4, 5, one.shape) for one in operands(problem)[:2])
    gradient = problem.reference(dy, w)
    for at in zip(*(random.integers(0, size, 8) for size in problem.y_shape), strict=True):
        x = np.zeros(problem.y_shape, np.int64)
        x[at] = 1
        assert gradient[at] == (problem.forward.reference(x, w) * dy).sum()


def test_the_roles_follow_from_the_accesses() -> None:
    _, roles, _ = model_of(parse_problem("bwd_d mb4ic5ih7oc9kh3ph1"))
    assert str(roles) == "m=(n,h,w) n=c k=k br=(r,s)"
    assert roles.padded and not roles.packs_b
    assert (
        roles.formula
        == "I[n][c][h][w] += O[n][k][h + r - 1][w + s - 1] * W[k][c][-1*r + 2][-1*s + 2]"
    )
    _, roles, _ = model_of(parse_problem("bwd_d mb4ic5ih7oc9kh3ph1sh2"))
    assert roles.clipped and str(roles.out) == "I[n][c][2*p + r - 1][2*q + s - 1]"


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
@pytest.mark.parametrize("words", DENSE.values(), ids=DENSE)
def test_code_of_the_first_choice_is_right(words: str, isa: str) -> None:
    if isa not in {own.name for own in detect().runnable}:
        pytest.skip(f"this CPU lacks {isa}")
    layout, dtype = ("nchw", "nhwc")[len(words) % 2], ("f32", "bf16")[len(words) // 2 % 2]
    problem, target, threads = parse_problem(words, layout, dtype), detect(isa), 1 + len(words) % 2
    _, roles, strides = model_of(problem)
    context = Context(roles, strides, target, assume_rates(target), threads)
    (choice,) = candidates(problem, context, 1)
    for verdict in check(problem, [choice.schedule], threads):
        assert verdict.passed, verdict.fault


def test_transposed_convolutions_have_the_extents_of_pytorch() -> None:
    problem = Conv2dBackwardData.transposed(
        2, 6, 5, 7, 4, 3, 2, stride=(2, 3), pad=1, output_padding=(1, 0), dilation=(1, 2), groups=2,
        layout="nchw",
    )  # fmt: skip
    assert problem.x_shape == (2, 6, 5, 7) and problem.w_shape == (6, 2, 3, 2)
    assert problem.y_shape == (2, 4, 4 * 2 - 2 + 3 + 1, 6 * 3 - 2 + 3)
    with pytest.raises(SpecError, match=r"output_padding\[0\]=2 must not be negative, and below"):
        Conv2dBackwardData.transposed(1, 2, 3, 3, 2, 3, 3, stride=2, output_padding=2)
    with pytest.raises(TypeError, match="stride"):
        Conv2dBackwardData.transposed(1, 2, 3, 3, 2, 3, 3, stride="2")  # type: ignore[arg-type]


@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2), st.integers(0, 2)
)
def test_transposed_convolutions_scatter(
    taps: int, stride: int, pad: int, apart: int, more: int
) -> None:
    """Against the definition: each pixel of x adds the filter to y, ``pad`` of which is cut off."""
    assume(more < max(stride, apart) and 3 * stride + (taps - 1) * apart + 1 + more > 2 * pad)
    problem = Conv2dBackwardData.transposed(
        2, 3, 4, 4, 2, taps, taps, stride, pad, more, apart, layout="nchw"
    )
    random = np.random.default_rng(0)
    x = random.integers(-4, 5, problem.x_shape)
    w = random.integers(-4, 5, problem.w_shape)
    size = 3 * stride + (taps - 1) * apart + 1 + more
    y = np.zeros((2, 2, size, size), np.int64)
    for p in range(4):
        for q in range(4):
            for r in range(taps):
                for s in range(taps):
                    at = p * stride + r * apart, q * stride + s * apart
                    y[:, :, *at] += x[:, :, p, q] @ w[:, :, r, s]
    inner = slice(pad, size - pad)
    assert np.array_equal(problem.reference(x, w), y[:, :, inner, inner])
