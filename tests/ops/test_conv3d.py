"""Conv3d and Conv1d: their texts, references, and code."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polysci
from polysci.cost import Context
from polysci.errors import SpecError, UnsupportedError
from polysci.lower.choice import candidates
from polysci.measure.check import check
from polysci.ops import Conv1d, Conv2d, Conv3d, parse_key, parse_problem
from polysci.ops.model import model_of
from polysci.target.host import detect
from polysci.target.machine import assume_rates

CASES = {
    "padded": "conv3d ic5id5ih6iw7oc9kd3kh3kw3pd1ph1pw1",
    "strided cube": "ic6id9oc7od5kd3sd2pd1",
    "dilated, grouped": "conv3d g2mb1ic6id7oc8kd2dd2pd1",
    "one by one by one": "conv3d mb3ic19id3ih4iw5oc20kd1kh1kw1",
    "cropped": "conv3d mb1ic3id6oc4od3kd3pd0",
    "long": "conv1d mb2ic5iw19oc9kw3sw2pw1",
    "long, depthwise": "conv1d g16mb1ic16iw30oc16kw5dw1pw4",
    "depthwise": "conv3d g16mb1ic16id5ih6iw9oc16kd3kh3kw3pd1ph1pw1",
}
small = st.integers(1, 3)
convolutions = st.builds(
    lambda groups, c, k, **fields: Conv3d(C=c * groups, K=k * groups, groups=groups, **fields),
    groups=small, c=small, k=small, N=st.integers(0, 2),
    D=st.integers(5, 7), H=st.integers(5, 7), W=st.integers(5, 7), T=small, R=small, S=small,
    stride=st.tuples(small, small, small), pad=st.tuples(*(st.integers(0, 2),) * 3),
    dilation=st.tuples(*(st.integers(1, 2),) * 3), layout=st.sampled_from(["nhwc", "nchw"]),
    name=st.sampled_from(["", "stem", "a b"]), multiplicity=st.integers(1, 3),
)  # fmt: skip


@pytest.mark.exhaustive
@given(convolutions)
def test_round_trip(conv: Conv3d) -> None:
    assert parse_problem(str(conv), conv.layout) == conv
    assert parse_key(conv.key) == conv.with_(name="", multiplicity=1)


@pytest.mark.exhaustive
@settings(max_examples=25)
@given(convolutions)
def test_the_reference_is_the_sum_over_taps(conv: Conv3d) -> None:
    random = np.random.default_rng(0)
    x, w = (random.integers(-4, 5, shape) for shape in (conv.x_shape, conv.w_shape))
    y, image = conv.reference(x, w), x
    if conv.layout == "nhwc":
        y, image = np.moveaxis(y, -1, 1), np.moveaxis(x, -1, 1)
    expected = np.zeros((conv.N, conv.K, *conv.pixels), np.int64)
    own, filters = conv.C // conv.groups, conv.K // conv.groups
    for k, tap in itertools.product(range(conv.K), np.ndindex(*conv.taps)):
        first = k // filters * own
        for pixel in np.ndindex(*conv.pixels):
            rows = zip(pixel, tap, conv.stride, conv.dilation, conv.pad, strict=True)
            place = [p * stride + t * apart - pad for p, t, stride, apart, pad in rows]
            if all(0 <= at < size for at, size in zip(place, image.shape[2:], strict=True)):
                read = image[:, first : first + own, place[0], place[1], place[2]]
                expected[:, k, *pixel] += read @ w[(k, slice(None), *tap)]
    np.testing.assert_array_equal(y, expected)


def test_depth_of_one_is_the_convolution_over_two_axes() -> None:
    deep = Conv3d(2, 4, 1, 9, 8, 6, 1, 3, 2, stride=(1, 2, 1), pad=(0, 1, 0))
    flat = Conv2d(2, 4, 9, 8, 6, 3, 2, stride=(2, 1), pad=(1, 0))
    random = np.random.default_rng(0)
    x, w = random.random(flat.x_shape), random.random(flat.w_shape)
    y = deep.reference(x[:, None], w[:, :, None])
    np.testing.assert_array_equal(y[:, 0], flat.reference(x, w))
    assert (deep.flops, deep.terms, deep.bias_axis) == (flat.flops, flat.terms, 4)


@pytest.mark.parametrize(
    ("words", "column", "message"),
    [
        ("conv3d ic3id8oc4", 11, "kd is missing beside id"),
        ("conv3d ic3ih8oc4kh3", 8, "id and kd are missing"),
        ("conv3d ic3id8ih8oc4kd3kh3", 11, "id asks for both the h and the w words"),
        ("conv3d ic3id8oc4kd3sd2sh1", 23, "sh1 disagrees with sd2 of a cubic shape"),
        ("ic3id8oc4kd3pd1dd9", 10, "kd3 gives an empty output: the filter spans 21 elements"),
        ("conv3d g2ic3id8oc4kd3", 10, "ic3 is not divisible by g2"),
    ],
)
def test_a_caret_points_at_what_is_wrong(words: str, column: int, message: str) -> None:
    with pytest.raises(SpecError, match=message) as refused:
        parse_problem(words, where="net.txt:2")
    lines = str(refused.value).splitlines()
    assert lines[0].startswith(f"net.txt:2:{column}: ") and lines[2] == f"    {' ' * (column - 1)}^"


def test_height_of_one_is_the_convolution_over_one_axis() -> None:
    long = Conv1d(2, 4, 8, 6, 2, stride=3, pad=1)
    flat = Conv2d(2, 4, 1, 8, 6, 1, 2, stride=(1, 3), pad=(0, 1))
    random = np.random.default_rng(0)
    x, w = random.random(flat.x_shape), random.random(flat.w_shape)
    y = long.reference(x[:, 0], w[:, :, 0])
    np.testing.assert_array_equal(y, flat.reference(x, w)[:, 0])
    assert parse_problem(str(long)) == long and parse_key(long.key) == long
    with pytest.raises(UnsupportedError, match="ih4: 2-D words, which Conv2d reads"):
        parse_problem("conv1d ic16ih4iw100oc32kw3")


def test_errors_name_the_class() -> None:
    with pytest.raises(TypeError, match=r"Conv1d: pad must be an int or a tuple \(w\)"):
        Conv1d(1, 3, 8, 4, 3, pad=(1, 1))
    with pytest.raises(TypeError, match=r"Conv3d: pad must be an int or a triple \(d, h, w\)"):
        Conv3d(1, 3, 8, 8, 8, 4, 3, 3, 3, pad=(1, 1))  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"Conv3d: D=0 must be positive"):
        Conv3d(1, 3, 0, 8, 8, 4, 3, 3, 3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_code_of_the_first_choice_is_right(words: str, isa: str) -> None:
    if isa not in {own.name for own in detect().runnable}:
        pytest.skip(f"this CPU lacks {isa}")
    layout, threads = "nchw" if len(words) % 2 else "nhwc", 1 + len(words) // 2 % 2
    dtype = ("f32", "bf16", "u8:s8:u8")[len(words) % 3]
    problem, target = parse_problem(words, layout, dtype), detect(isa)
    _, roles, strides = model_of(problem)
    context = Context(roles, strides, target, assume_rates(target), threads)
    (choice,) = candidates(problem, context, 1)
    for verdict in check(problem, [choice.schedule], threads):
        assert verdict.passed, verdict.fault


@pytest.mark.exhaustive
def test_it_compiles_with_a_bias_and_a_residual() -> None:
    problem, random = parse_problem(CASES["padded"]), np.random.default_rng(0)
    shapes = (problem.x_shape, problem.w_shape, (9,), problem.y_shape)
    x, w, bias, residual = (random.integers(-4, 5, shape).astype(np.float32) for shape in shapes)
    primitive = polysci.compile(problem, level="estimate")
    y = primitive(x, primitive.pack_weights(w), bias=bias, residual=residual, clamp=(0.0, 9.0))
    np.testing.assert_array_equal(y, problem.reference(x, w, bias, residual, (0.0, 9.0)))
