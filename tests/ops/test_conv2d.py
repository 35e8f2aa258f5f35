"""Conv2d: its fields, its reference against the definition, its nest against the reference."""

import dataclasses
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polysci import ops
from polysci.errors import SpecError
from polysci.numerics.dtypes import PRECISIONS, precision_named, to_stored
from polysci.ops.convolutions import Conv2d
from polysci.polyhedral import contraction as reference_module
from tests.support.nests import textbook_c

LAYER = Conv2d(N=1, C=64, H=56, W=56, K=64, R=3, S=3, stride=1, pad=1, name="res2a")
SMALL: dict[str, Any] = {"N": 2, "C": 4, "H": 6, "W": 7, "K": 6, "R": 3, "S": 2}
CASES: list[dict[str, Any]] = [
    {},
    {"stride": (2, 1)},
    {"pad": (1, 2), "dilation": (2, 1)},
    {"pad": 1, "groups": 2},
    {"pad": 7, "stride": 3},
    {"pad": 1, "P": 9, "Q": 3},
    {"P": 1, "Q": 2, "stride": 2},
    {"C": 6, "groups": 6, "pad": 1, "stride": 2},
    {"C": 2, "K": 6, "groups": 2, "pad": (0, 1), "dilation": (1, 3)},
    {"R": 1, "S": 1},
    {"R": 1, "S": 1, "stride": 2, "H": 5},
    {"R": 6, "S": 7},
]


def problem_of(case: dict[str, Any], layout: str = "nhwc") -> Conv2d:
    return Conv2d(**{**SMALL, **case, "layout": layout})


def integers(problem: Conv2d, dtype: type = np.float32) -> tuple[Any, Any]:
    """Input and weights of small integers."""
    random = np.random.default_rng(7)
    x, w = (random.integers(-4, 5, shape) for shape in (problem.x_shape, problem.w_shape))
    return x.astype(dtype), w.astype(dtype)


def by_definition(problem: Conv2d, x: Any, w: Any) -> Any:
    """The seven loops, on tensors in the problem's layout."""
    logical = x.transpose(0, 3, 1, 2) if problem.layout == "nhwc" else x
    y = np.zeros((problem.N, problem.K, problem.P, problem.Q), x.dtype)
    per_group = problem.C // problem.groups, problem.K // problem.groups
    box = (*y.shape, per_group[0], problem.R, problem.S)
    (sh, sw), (ph, pw), (dh, dw) = problem.stride, problem.pad, problem.dilation
    for n, k, p, q, c, r, s in itertools.product(*map(range, box)):
        row, column = p * sh + r * dh - ph, q * sw + s * dw - pw
        if 0 <= row < problem.H and 0 <= column < problem.W:
            channel = k // per_group[1] * per_group[0] + c
            y[n, k, p, q] += logical[n, channel, row, column] * w[k, c, r, s]
    return y.transpose(0, 2, 3, 1) if problem.layout == "nhwc" else y


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_the_definition(case: dict[str, Any], layout: str) -> None:
    problem = problem_of(case, layout)
    x, w = integers(problem)
    y = problem.reference(x, w)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, by_definition(problem, x, w))


@settings(max_examples=40)
@given(st.data())
def test_reference_of_any_shape(data: st.DataObject) -> None:
    def draw(first: int, last: int) -> int:
        return data.draw(st.integers(first, last))

    groups = draw(1, 3)
    problem = Conv2d(
        *(draw(0, 2), groups * draw(1, 2), draw(5, 7), draw(5, 7)),
        *(groups * draw(1, 2), draw(1, 3), draw(1, 3)),
        stride=(draw(1, 3), draw(1, 3)),
        pad=(draw(0, 3), draw(0, 3)),
        dilation=(draw(1, 2), draw(1, 2)),
        groups=groups,
        P=draw(1, 6),
        layout=data.draw(st.sampled_from(["nhwc", "nchw"])),
    )
    x, w = integers(problem, np.float64)
    np.testing.assert_array_equal(problem.reference(x, w), by_definition(problem, x, w))


def test_reference_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of({"pad": 1, "groups": 2})
    x, w = integers(problem)
    whole = problem.reference(x, w)
    monkeypatch.setattr(reference_module, "BAND", 1)
    np.testing.assert_array_equal(problem.reference(x, w), whole)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_reference_epilogue(layout: str) -> None:
    problem = problem_of({"pad": 1}, layout)
    x, w = integers(problem)
    bias = np.arange(problem.K, dtype=np.float32)
    residual = np.random.default_rng(1).integers(-9, 9, problem.y_shape).astype(np.float32)
    along = bias if layout == "nhwc" else bias[:, None, None]
    expected = np.clip(problem.reference(x, w) + along + residual, 0, 6)
    np.testing.assert_array_equal(problem.reference(x, w, bias, residual, (0, 6)), expected)


def test_reference_keeps_its_inputs() -> None:
    x, w = integers(LAYER)
    before = x.copy(), w.copy()
    LAYER.reference(x, w, residual=x)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(w, before[1])


@pytest.mark.parametrize("wrong", ["x", "w", "bias", "residual"])
def test_reference_refuses_other_shapes(wrong: str) -> None:
    x, w = integers(LAYER)
    arguments = {"x": x, "w": w, "bias": np.zeros(64), "residual": np.zeros(LAYER.y_shape)}
    arguments[wrong] = np.zeros(3)
    with pytest.raises(ValueError, match=rf"^{wrong}: expected shape \(.*\), got \(3,\)"):
        LAYER.reference(**arguments)


def test_nest_text() -> None:
    problem = Conv2d(1, 4, 9, 9, 6, 3, 1, stride=(2, 1), pad=(1, 0), groups=2)
    assert textbook_c(problem, "conv2d") == (
        "#include <stdint.h>\n"
        "void conv2d(float O[1][6][5][9], const float I[1][4][9][9], const float W[6][2][3][1])\n"
        "{\n"
        "#pragma scop\n"
        "    for (int64_t n = 0; n < 1; ++n) {\n"
        "        for (int64_t g = 0; g < 2; ++g) {\n"
        "            for (int64_t k = 0; k < 3; ++k) {\n"
        "                for (int64_t p = 0; p < 5; ++p) {\n"
        "                    for (int64_t q = 0; q < 9; ++q) {\n"
        "                        for (int64_t c = 0; c < 2; ++c) {\n"
        "                            for (int64_t r = 0; r < 3; ++r) {\n"
        "                                for (int64_t s = 0; s < 1; ++s) {\n"
        "                                    if (2 * p + r - 1 >= 0 && 2 * p + r - 1 < 9) {\n"
        "                                        O[n][3 * g + k][p][q] = O[n][3 * g + k][p][q] + "
        "I[n][2 * g + c][2 * p + r - 1][q + s] * W[3 * g + k][c][r][s];\n"
        + "".join(f"{' ' * depth}}}\n" for depth in range(36, 3, -4))
        + "#pragma endscop\n}\n"
    )


def test_nest_has_no_names_in_it() -> None:
    hostile = LAYER.with_(name='x"; } int evil(void) { //')
    assert str(hostile.nest()) == str(LAYER.nest())


def test_shapes() -> None:
    problem = Conv2d(2, 6, 10, 12, 4, 3, 5, stride=(2, 1), pad=(1, 2), groups=2)
    assert (problem.P, problem.Q) == (5, 12)
    assert (problem.x_shape, problem.y_shape) == ((2, 10, 12, 6), (2, 5, 12, 4))
    assert problem.w_shape == (4, 3, 3, 5)
    turned = problem.with_(layout="nchw")
    assert (turned.x_shape, turned.y_shape) == ((2, 6, 10, 12), (2, 4, 5, 12))
    assert turned.w_shape == problem.w_shape
    assert problem.flops == 2 * 2 * 4 * 5 * 12 * 3 * 3 * 5


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_arrays_say_where_elements_lie(layout: str) -> None:
    problem = problem_of({"groups": 2}, layout)
    arrays = problem.arrays()
    assert list(arrays) == ["I", "O", "W"]
    for name, shape in (("I", problem.x_shape), ("O", problem.y_shape), ("W", problem.w_shape)):
        stored = np.arange(np.prod(shape)).reshape(shape)
        turned = name != "W" and layout == "nhwc"
        logical = stored.transpose(0, 3, 1, 2) if turned else stored
        assert arrays[name][0] == logical.shape
        for index, offset in np.ndenumerate(logical):
            assert np.dot(index, arrays[name][1]) == offset


def test_padding_at_the_end() -> None:
    assert LAYER.pad_end == (1, 1)
    assert Conv2d(1, 3, 224, 224, 8, 3, 3, stride=2, P=112, Q=111).pad_end == (1, -1)


def test_values_of_any_integer_type() -> None:
    problem = Conv2d(np.int64(1), 3, np.uint8(8), 8, 4, 3, 3, stride=[2, 1])  # type: ignore[arg-type]
    assert type(problem.N) is type(problem.H) is int
    assert problem.stride == (2, 1)
    assert problem == Conv2d(1, 3, 8, 8, 4, 3, 3, stride=(2, 1))


@pytest.mark.parametrize("value", [True, 3.0, "3", None, 3 + 0j, np.float32(3), [3]])
@pytest.mark.parametrize("field", ["N", "C", "W", "S", "groups", "multiplicity"])
def test_sizes_are_integers(field: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"{field} must be an int, got {type(value).__name__}"):
        LAYER.with_(**{field: value})


@pytest.mark.parametrize("value", [True, 1.0, "1", (1, 2, 3), (1,), (1, 2.0), (False, 1)])
@pytest.mark.parametrize("field", ["stride", "pad", "dilation"])
def test_pairs_are_integers(field: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"{field} must be an int"):
        LAYER.with_(**{field: value})


@pytest.mark.parametrize("field", ["P", "Q"])
@pytest.mark.parametrize("value", [True, 5.0])
def test_outputs_are_integers(field: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"{field} must be an int"):
        LAYER.with_(**{field: value})


@pytest.mark.parametrize("field", ["layout", "dtype", "name"])
def test_texts_are_text(field: str) -> None:
    with pytest.raises(TypeError, match=f"{field} must be a str, got int 3"):
        LAYER.with_(**{field: 3})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"N": -1}, "N=-1 must not be negative"),
        ({"H": 0}, "H=0 must be positive"),
        ({"C": -64}, "C=-64 must be positive"),
        ({"groups": 0}, "groups=0 must be positive"),
        ({"multiplicity": 0}, "multiplicity=0 must be positive"),
        ({"stride": (1, 0)}, "stride\\[1\\]=0 must be positive"),
        ({"dilation": 0}, "dilation\\[0\\]=0 must be positive"),
        ({"pad": -1}, "pad\\[0\\]=-1 must not be negative"),
        ({"P": 0}, "P=0 must be positive"),
        ({"Q": -3}, "Q=-3 must be positive"),
        ({"C": 6, "groups": 4}, "C=6 is not divisible by groups=4"),
        ({"K": 6, "groups": 4}, "K=6 is not divisible by groups=4"),
        ({"pad": 0, "R": 57}, "R=57 gives an empty output: .* and H=56 has 56 with pad"),
        ({"dilation": (1, 99)}, "S=3 gives an empty output: the filter spans 199"),
        ({"N": 2**63}, "N=9223372036854775808 is beyond 2"),
        ({"dilation": 2**63, "R": 1, "S": 1}, "dilation.* is beyond 2"),
        ({"N": 2**45}, "N=35184372088832: the count of bytes of the input is"),
        ({"stride": 2**40, "H": 2**31, "W": 2**31}, "H=2147483648: the count of bytes"),
        ({"N": 0, "H": 2**31, "W": 2**31}, "the count of bytes"),
        ({"pad": 2**31, "stride": 2**31}, "the count of bytes of the padded input"),
        ({"N": 10**5000}, r"N=about 2\^16609 is beyond 2"),
        ({"H": -(10**5000)}, r"H=about -2\^16609 must be positive"),
        ({"P": 10**5000}, r"P=about 2\^16609: the count of bytes of the output is about 2\^"),
        ({"layout": "chwn"}, "layout='chwn' is none of nhwc, nchw"),
        ({"name": "a\nb"}, r"name holds '\\n'"),
        ({"name": "\ud800"}, r"name holds '\\ud800'"),
    ],
)
def test_rules(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"^Conv2d: .*{message}"):
        LAYER.with_(**changes)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_precision_belongs_to_the_problem(dtype: str) -> None:
    problem = LAYER.with_(dtype=dtype)
    assert problem.dtype == dtype and problem.key == f"{LAYER.key.removesuffix('f32')}{dtype}"
    assert str(problem) == str(LAYER)  # the words say no more than shapes
    assert Conv2d.parse(str(problem), problem.layout, dtype) == problem
    assert (problem == LAYER) == (dtype == "f32")
    assert ops.parse_problem(str(problem), "nhwc", dtype) == problem


def test_int8_is_another_name() -> None:
    problem = LAYER.with_(dtype="int8")
    assert problem.dtype == "u8:s8:u8" and problem == LAYER.with_(dtype="u8:s8:u8")
    assert ops.problem_of(problem, dtype="int8") is problem
    assert Conv2d.parse(str(LAYER), dtype="int8") == problem


@pytest.mark.parametrize("dtype", ["", "f64", "bf16 ", "s8:u8:s8", "f32:f32:f16", "u8"])
def test_an_unknown_precision_is_named(dtype: str) -> None:
    message = f"dtype {dtype!r}: expected one of f32, bf16, bf16:bf16:f32, .*u8:s8:u8\\)"
    with pytest.raises(SpecError, match=message):
        LAYER.with_(dtype=dtype)
    with pytest.raises(SpecError, match=message):
        ops.parse_problem(str(LAYER), dtype=dtype)


def test_a_precision_is_text() -> None:
    with pytest.raises(TypeError, match="dtype"):
        LAYER.with_(dtype=np.float32)


def test_one_precision_a_problem() -> None:
    with pytest.raises(SpecError, match="dtype: the problem has 'bf16', got 'f32' beside it"):
        ops.problem_of(LAYER.with_(dtype="bf16"), dtype="f32")


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [("f32", (64, 64, 16)), ("bf16", (32, 32, 8)), ("bf16:bf16:f32", (32, 32, 16)),
     ("int8", (16, 16, 4)), ("s8:s8:s32", (16, 16, 16))],
)  # fmt: skip
def test_bytes_of_memory(dtype: str, sizes: tuple[int, ...]) -> None:
    problem = Conv2d(N=1, C=4, H=2, W=2, K=4, R=1, S=1, P=1, Q=1, dtype=dtype)
    x, w, y = sizes
    problem.check_memory(x + w + y)
    told = rf"x {x} bytes, w {w} bytes, y {y} bytes are beyond the {x + w + y - 1} bytes"
    with pytest.raises(SpecError, match=told):
        problem.check_memory(x + w + y - 1)


def test_zero_batch() -> None:
    problem = LAYER.with_(N=0)
    x, w = integers(problem)
    assert problem.flops == 0
    assert problem.reference(x, w).shape == problem.y_shape == (0, 56, 56, 64)


def test_with_recomputes_outputs() -> None:
    assert LAYER.with_(H=28).P == 28
    assert LAYER.with_(stride=2) == Conv2d(1, 64, 56, 56, 64, 3, 3, stride=2, pad=1, name="res2a")
    asymmetric = Conv2d(1, 3, 224, 224, 8, 3, 3, stride=2, P=112, Q=112)
    assert asymmetric.with_(N=4).P == 112
    assert asymmetric.with_(H=223).P == 112
    assert LAYER.with_(P=10, H=28).P == 10


def test_is_a_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LAYER.N = 2  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        LAYER.extra = 1  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(LAYER)) == LAYER
    assert len({LAYER, LAYER.with_(), LAYER.with_(N=2)}) == 2


def test_memory() -> None:
    LAYER.check_memory()
    needed = 4 * (2 * 56 * 56 * 64 + 64 * 64 * 9)
    LAYER.check_memory(needed)
    with pytest.raises(SpecError, match=f"beyond the {needed - 1} bytes of memory"):
        LAYER.check_memory(needed - 1)
    with pytest.raises(SpecError, match="bytes of memory"):
        LAYER.with_(N=2**30).check_memory()


@pytest.mark.parametrize("dtype", ["u8:s8:s32", "s8:s8:s8", "bf16", "f16"])
def test_what_a_narrow_precision_stores_is_widened(dtype: str) -> None:
    problem = Conv2d(N=1, C=4, H=2, W=2, K=3, R=1, S=1, dtype=dtype)
    row, rng = precision_named(dtype), np.random.default_rng(0)
    low = 0 if row.x.name == "u8" else -120
    x = rng.integers(low, 120, problem.x_shape).astype(np.float32)
    w = rng.integers(-120, 120, problem.w_shape).astype(np.float32)
    y = problem.reference(to_stored(x, row.x), to_stored(w, row.w))
    assert y.dtype == (np.int64 if row.integer else np.float64)
    assert (y == np.einsum("nhwc,kcrs->nhwk", x, w)).all()
