"""Gradients of convolutions: their texts, references, nests, and the code of them."""

from types import FunctionType
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import polysci
from polysci.cost import Context
from polysci.errors import SpecError, UnsupportedError
from polysci.lower.choice import candidates
from polysci.measure.check import check
from polysci.ops import (
    BackwardData,
    BackwardWeights,
    Conv1d,
    Conv2d,
    Conv2dBackwardData,
    Conv3d,
    Conv3dBackwardWeights,
    ConvTranspose2d,
    in_direction,
    parse_key,
    parse_problem,
)
from polysci.ops.model import model_of
from polysci.ops.problem import operands
from polysci.runtime.source import emit
from polysci.space import schedule
from polysci.target.host import detect
from polysci.target.machine import assume_rates

CONVOLUTIONS = {
    "padded": "mb2ic5ih7oc9kh3ph1",
    "not padded": "mb1ic20ih9iw8oc7kh3kw2ph0pw0",
    "padded beyond its reach": "mb1ic5ih6oc4kh2ph4",
    "dilated": "mb1ic3ih9oc4kh3ph2dh1",
    "grouped": "g3mb2ic6ih6oc9kh3ph1",
    "depthwise": "g20mb1ic20ih8oc20kh3ph1",
    "one by one": "mb3ic19ih5oc20kh1",
    "cropped": "mb1ic3ih9iw8oc4oh4ow3kh3kw3ph0pw0",
    "long": "conv1d g2mb2ic6iw19oc8kw3dw1pw2",
    "deep": "conv3d mb2ic5id4ih5iw6oc7kd3kh2kw3pd1ph1pw1",
    "deep, depthwise": "conv3d g20mb1ic20id5oc20kd3pd1",
    "deep, dilated": "conv3d g2mb1ic6id6oc4kd2dd2pd1",
}
STRIDED = {
    "strided": "mb1ic6ih9iw8oc7oh5ow4kh3kw2sh2sw2ph1pw0",
    "long, strided": "conv1d mb2ic5iw19oc7kw4sw3pw1",
    "strided one by one": "mb2ic19ih6oc20kh1sh2ph0",
    "deep, strided": "conv3d mb1ic6id5ih6iw7oc4kd3kh3kw2sd2sh1sw2pd1ph1pw0",
}
GRADIENTS = [
    f"{word} {words}" for word in ("bwd_d", "bwd_w") for words in (CONVOLUTIONS | STRIDED).values()
]
CODE = [text for text in GRADIENTS if text[6:] in CONVOLUTIONS.values() or "bwd_w" in text]
small = st.integers(1, 5)


@given(
    st.sampled_from(["bwd_d", "bwd_w"]),
    st.sampled_from([(Conv1d, "W", "S"), (Conv2d, "HW", "RS"), (Conv3d, "DHW", "TRS")]),
    st.data(),
)
def test_round_trip(word: str, family: tuple[Any, str, str], data: st.DataObject) -> None:
    kind, sizes, taps = family
    extents = {name: data.draw(st.integers(9, 20)) for name in sizes}
    extents |= {name: data.draw(small) for name in ("N", "C", "K", *taps)}
    conv = kind(
        **extents,
        stride=data.draw(st.integers(1, 3)),
        pad=data.draw(st.integers(0, 3)),
        layout=data.draw(st.sampled_from(["nhwc", "nchw"])),
        dtype=data.draw(st.sampled_from(["f32", "bf16"])),
        name=data.draw(st.sampled_from(["", "res2a", "a b"])),
        multiplicity=data.draw(small),
    )
    problem = in_direction(conv, word)
    assert type(problem).__name__.startswith(kind.__name__)
    assert parse_problem(str(problem), conv.layout, conv.dtype) == problem
    assert parse_problem(f"{word}:{conv}", conv.layout, conv.dtype) == problem
    assert parse_key(problem.key) == problem.with_(name="", multiplicity=1)


@pytest.mark.parametrize("word", ["bwd_d", "bwd_w"])
def test_a_caret_points_at_what_is_wrong(word: str) -> None:
    with pytest.raises(SpecError, match="kh is missing") as refused:
        parse_problem(f"{word} ic3ih8oc4", where="net.txt:2")
    lines = str(refused.value).splitlines()
    assert lines[0].startswith("net.txt:2:10: ") and lines[2] == f"    {' ' * 9}^"
    with pytest.raises(SpecError, match="kd is missing") as refused:
        parse_problem(f"{word} conv3d ic3id8oc4", where="net.txt:2")
    assert str(refused.value).startswith("net.txt:2:17: ")
    with pytest.raises(UnsupportedError, match=r"as a gradient of Conv.*real types only"):
        parse_problem(f"{word} ic3ih8oc4kh3", dtype="int8")


def test_other_convolutions_are_refused() -> None:
    deep = Conv3d(1, 3, 8, 8, 8, 4, 3, 3, 3)
    with pytest.raises(TypeError, match="Conv2dBackwardData: forward must be a Conv2d, got str"):
        Conv2dBackwardData("ic3ih8oc4kh3")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Conv2dBackwardData: forward must be a Conv2d, got Conv3d"):
        Conv2dBackwardData(deep)
    with pytest.raises(TypeError, match="Conv3dBackwardWeights: forward must be a Conv3d"):
        Conv3dBackwardWeights(Conv2d(1, 3, 8, 8, 4, 3, 3))


def test_filters_without_images_have_zeros_for_gradients() -> None:
    for words in ("mb0ic8ih6oc12kh3ph1", "g4mb0ic8ih6oc4kh3sh2", "conv3d mb0ic4id6oc8kd3"):
        problem = parse_problem(f"bwd_w {words}")
        assert str(problem.with_batch(1)).replace("mb1", "mb0") == str(problem)
        x, dy = (np.empty(shape, np.float32) for shape in (problem.x_shape, problem.w_shape))
        assert np.array_equal(problem.reference(x, dy), np.zeros(problem.y_shape))
        with pytest.raises(SpecError, match="N=0: without images there are no loops"):
            model_of(problem)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("words", GRADIENTS)
def test_the_gradient_is_that_of_the_convolution(words: str, layout: str) -> None:
    """Its product with any x, or w, is that of dY with the convolution of it."""
    problem, random = parse_problem(words, layout), np.random.default_rng(0)
    assert isinstance(problem, BackwardData | BackwardWeights)
    first, second = (random.integers(-4, 5, own.shape) for own in operands(problem)[:2])
    gradient, conv = problem.reference(first, second), problem.forward
    for at in zip(*(random.integers(0, size, 8) for size in problem.y_shape), strict=True):
        one = np.zeros(problem.y_shape, np.int64)
        one[at] = 1
        if isinstance(problem, BackwardData):
            assert gradient[at] == (conv.reference(one, second) * first).sum()
        else:
            assert gradient[at] == (conv.reference(first, one) * second).sum()


def test_the_roles_of_backward_data_follow_from_the_accesses() -> None:
    _, roles, _ = model_of(parse_problem("bwd_d mb4ic5ih7oc9kh3ph1"))
    assert str(roles) == "m=(n,h,w) n=c k=k br=(r,s)"
    assert roles.padded and not roles.packs_b
    assert (
        roles.formula
        == "I[n][c][h][w] += O[n][k][h + r - 1][w + s - 1] * W[k][c][-1*r + 2][-1*s + 2]"
    )
    _, roles, _ = model_of(parse_problem("bwd_d mb4ic5ih7oc9kh3ph1sh2"))
    assert roles.clipped and str(roles.out) == "I[n][c][2*p + r - 1][2*q + s - 1]"


@pytest.mark.parametrize("images", [1, 4])
def test_the_roles_of_backward_weights_follow_from_the_accesses(images: int) -> None:
    _, roles, _ = model_of(parse_problem(f"bwd_w mb{images}ic5ih7oc9kh3ph1"))
    assert str(roles) == "m=(c,r,s) n=k br=(n,p,q)"
    assert roles.packs_b and roles.padded
    assert (roles.a.array, roles.b.array, roles.out.array) == ("I", "O", "W")


def test_words_of_pixels_are_of_several_images() -> None:
    """Neighbours in a word must have the same padding, whatever the tap."""
    _, roles, _ = model_of(parse_problem("bwd_w mb4ic5ih7oc9kh3ph1", dtype="bf16"))
    assert str(roles) == "m=(c,r,s) n=k k=n br=(p,q)"


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
@pytest.mark.parametrize("words", CODE)
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


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("words", "layout", "dtype"),
    [
        ("bwd_w g4mb1ic8ih6oc4kh3ph1", "nhwc", "f32"),  # a filter a group, of several channels
        ("bwd_w conv1d g3mb2ic9iw7oc3kw3pw1", "nchw", "f32"),
        ("bwd_w mb3ic3ih8iw6oc5kh3kw3ph0pw1", "nchw", "f16:f16:f32"),  # copies widen x
        ("bwd_w ic1ih7iw8oc5oh4ow14kh3kw5sh3sw1ph3pw7dh0dw1", "nhwc", "f16"),
    ],
)
def test_filters_whose_x_lies_apart_have_code(words: str, layout: str, dtype: str) -> None:
    problem = parse_problem(words, layout, dtype)
    target = detect("portable")
    _, roles, strides = model_of(problem)
    context = Context(roles, strides, target, assume_rates(target), 1)
    (choice,) = candidates(problem, context, 1)
    for verdict in check(problem, [choice.schedule], 1):
        assert verdict.passed, verdict.fault


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("words", "steps", "run"),
    [
        ("bwd_w mb3ic5ih6oc9kh1", "c:4", "A, B, 108, 5"),  # all pixels of all images
        ("bwd_w mb3ic11ih6oc9kh1", "c:8 pack(A) k:8 c:4", "A, B, 108, 4"),  # of a panel
        ("bwd_w mb3ic8ih6oc9kh1", "n:2 c:4", "A, B, 72, 8"),
        (
            "bwd_w mb3ic5ih7oc9kh1sh2",
            "c:4",
            "+ 32 * p0, 4, 10",
        ),  # pixels are apart, and rows more so
    ],
)
def test_pixels_side_by_side_are_one_run(words: str, steps: str, run: str) -> None:
    problem = parse_problem(words)
    plan = schedule.parse(f"k:8 {steps} > brgemm_portable_f32_4x8")
    assert run in emit(problem, plan).text
    for verdict in check(problem, [plan]):
        assert verdict.passed, verdict.fault


@pytest.mark.exhaustive
@pytest.mark.parametrize("images", [1, 16])
def test_copies_keep_the_channels_of_a_call_side_by_side(images: int) -> None:
    """Where no channel's pixels are neighbours, a kernel's rows are read from panels of them."""
    problem, target = parse_problem(f"bwd_w mb{images}ic512ih14oc512kh1"), detect("portable")
    _, roles, strides = model_of(problem)
    (choice,) = candidates(problem, Context(roles, strides, target, assume_rates(target), 1), 1)
    rows = choice.schedule.tile({d.name: d.extent for d in roles.dims})["c"]
    assert f".panel = {rows}, " in emit(problem, choice.schedule).text, str(choice.schedule)


def test_a_loop_over_taps_that_padding_cuts_needs_one_row() -> None:
    problem = parse_problem("bwd_w mb1ic4ih20oc9kh3ph1")
    plan = schedule.parse("k:8 p:4 c s > brgemm_portable_f32_4x8")
    with pytest.raises(UnsupportedError, match="a loop over 'p' needs one position of 'r'"):
        next(check(problem, [plan]))


def test_transposed_convolutions_have_the_extents_of_pytorch() -> None:
    problem = ConvTranspose2d(
        2, 6, 5, 7, 4, 3, 2, stride=(2, 3), pad=1, output_padding=(1, 0), dilation=(1, 2), groups=2,
        layout="nchw",
    )  # fmt: skip
    assert problem.x_shape == (2, 6, 5, 7) and problem.w_shape == (6, 2, 3, 2)
    assert problem.y_shape == (2, 4, 4 * 2 - 2 + 3 + 1, 6 * 3 - 2 + 3)
    assert parse_problem(str(problem), "nchw") == parse_key(problem.key) == problem
    assert problem.with_batch(3).x_shape == (3, 6, 5, 7)
    with pytest.raises(SpecError, match=r"output_padding\[0\]=2 must be below stride 2 or dilati"):
        ConvTranspose2d(1, 2, 3, 3, 2, 3, 3, stride=2, output_padding=2)
    with pytest.raises(TypeError, match="stride"):
        ConvTranspose2d(1, 2, 3, 3, 2, 3, 3, stride="2")  # type: ignore[arg-type]


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", ["portable", pytest.param("avx2", marks=pytest.mark.isa("avx2"))])
@pytest.mark.parametrize(
    ("text", "layout", "dtype", "threads"),
    [
        ("deconv mb2ic9ih4oc7oh8kh3sh2ph1", "nchw", "u8:s8:u8", 2),
        ("deconv g2mb2ic6ih3oc10oh10kh2sh4", "nhwc", "u8:s8:s32", 1),  # some pixels have no taps
        ("deconv mb1ic12ih5oc20kh3ph1", "nhwc", "s8:s8:s8", 1),
    ],
)
def test_whole_numbers_are_transposed_exactly(
    text: str, layout: str, dtype: str, threads: int, isa: str
) -> None:
    problem, target = parse_problem(text, layout, dtype), detect(isa)
    _, roles, strides = model_of(problem)
    context = Context(roles, strides, target, assume_rates(target), threads)
    plans = [it.schedule for it in candidates(problem, context, 2, "auto")]
    for verdict in check(problem, plans, threads):
        assert verdict.passed, verdict.fault


@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2), st.integers(0, 2)
)
def test_transposed_convolutions_scatter(
    taps: int, stride: int, pad: int, apart: int, more: int
) -> None:
    """Against the definition: each pixel of x adds the filter to y, ``pad`` of which is cut off."""
    assume(more < max(stride, apart) and 3 * stride + (taps - 1) * apart + 1 + more > 2 * pad)
    problem = ConvTranspose2d(2, 3, 4, 4, 2, taps, taps, stride, pad, more, apart, layout="nchw")
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


def test_axes_of_transposed_convolutions_have_their_names() -> None:
    axes = parse_problem("deconv ic4ih5oc6kh3", "nchw").axes
    assert axes == {"x": "N C H W", "w": "C K/groups R S", "bias": "K", "y": "N K P Q"}


def test_gradients_of_transposed_convolutions() -> None:
    """``<y(x, w), dy>`` is ``<x, dx(dy, w)>`` and ``<w, dw(dy, x)>``, as y is linear in both."""
    words = "deconv g2mb2ic6ih4iw3oc4oh9ow7kh3kw2sh2sw3ph1pw1dh1"
    y, dx, dw = (parse_problem(f"{word}{words}") for word in ("", "bwd_d ", "bwd_w "))
    random = np.random.default_rng(0)
    x, w, dy = (random.integers(-3, 4, shape).astype(np.float64)
                for shape in (y.x_shape, y.w_shape, y.y_shape))  # fmt: skip
    product = np.vdot(y.reference(x, w), dy)
    assert product == np.vdot(x, dx.reference(dy, w)) == np.vdot(w, dw.reference(dy, x))
    assert in_direction(y, "bwd_d") == dx and in_direction(y, "bwd_w") == dw
    assert in_direction(y, "fwd") == y


@pytest.mark.parametrize(
    ("words", "column", "message"),
    [
        ("deconv g3ic16ih8oc9kh4", 10, "ic16 is not divisible by g3"),
        ("deconv ic16ih8oc8oh12kh4sh2ph1", 18, "oh12 ow12: x and the padding make 16x16"),
        ("deconv ic16ih8oc8oh19kh4sh2ph1", 28, "must be below stride 2 or dilation 1"),
        ("deconv ic16ih2oc8kh1ph4", 21, "leaves nothing of the output"),
        ("deconv ic16ih2oc8", 12, "kh is missing"),
    ],
)
def test_words_of_deconvolutions(words: str, column: int, message: str) -> None:
    with pytest.raises(SpecError, match=message) as refused:
        parse_problem(words, where="net.txt:2")
    assert str(refused.value).startswith(f"net.txt:2:{column}: ")


def test_deconvolutions_without_padding_are_centred() -> None:
    """As benchdnn: half of what the output lacks is cut off before it."""
    problem = parse_problem("deconv ic16ih8oc8oh16kh4sh2")
    assert str(problem) == "deconv ic16ih8oc8oh16kh4sh2ph1"
    with pytest.raises(UnsupportedError, match="it has none"):
        parse_problem("deconv ic16ih8oc8kh4 act=relu")


@pytest.mark.exhaustive
def test_a_transposed_convolution_compiles() -> None:
    problem = ConvTranspose2d(2, 5, 4, 3, 6, 3, 3, stride=2, pad=1)
    random = np.random.default_rng(0)
    x, w = (random.integers(-4, 5, own.shape).astype(np.float32) for own in operands(problem)[:2])
    primitive = polysci.compile(problem, level="estimate")
    np.testing.assert_array_equal(primitive(x, primitive.pack_weights(w)), problem.reference(x, w))


def test_getters_are_functions() -> None:
    """Of other properties Python 3.14 makes no dataclass with slots."""
    kinds = {base for its in (BackwardData, BackwardWeights) for base in its.__mro__}
    members = [it for kind in kinds for it in vars(kind).values() if isinstance(it, property)]
    assert len(members) > 10 and all(isinstance(it.fget, FunctionType) for it in members)
