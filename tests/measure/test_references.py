"""What results are compared with, in every precision: exact integers and bounded reals."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from polysci.measure.error_bound import Reals
from polysci.measure.integer_reference import Arrays
from polysci.numerics.dtypes import (
    DTYPES,
    PRECISIONS,
    Precision,
    precision_named,
    to_stored,
    values,
)
from polysci.ops.convolutions import Conv2d
from polysci.ops.problem import bias_shape

SMALL = Conv2d(N=2, C=4, H=5, W=4, K=6, R=3, S=2, pad=1, stride=(2, 1), groups=2)
WHOLE = [name for name, row in PRECISIONS.items() if row.integer]
REAL = [name for name in PRECISIONS if name not in WHOLE]


def summed(problem: Conv2d, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The definition, element by element; ``x`` and ``w`` hold Python numbers."""
    y = np.zeros(problem.y_shape, object)
    nhwc = problem.layout == "nhwc"
    share, width = problem.K // problem.groups, problem.C // problem.groups
    points = product(*(range(n) for n in (problem.N, problem.K, problem.P, problem.Q)))
    for n, k, p, q in points:
        total = 0
        for c, r, s in product(range(width), range(problem.R), range(problem.S)):
            h = p * problem.stride[0] + r * problem.dilation[0] - problem.pad[0]
            v = q * problem.stride[1] + s * problem.dilation[1] - problem.pad[1]
            if 0 <= h < problem.H and 0 <= v < problem.W:
                channel = k // share * width + c
                total += x[(n, h, v, channel) if nhwc else (n, channel, h, v)] * w[k, c, r, s]
        y[(n, p, q, k) if nhwc else (n, k, p, q)] = total
    return y


def exactly(array: np.ndarray, dtype: str) -> np.ndarray:
    """The Fractions that an array in memory stands for."""
    real = values(array, DTYPES[dtype])
    return np.array([Fraction(float(v)) for v in real.reshape(-1)], object).reshape(real.shape)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_inputs_and_results_have_the_types_of_the_precision(dtype: str, layout: str) -> None:
    problem, row = SMALL.with_(dtype=dtype, layout=layout), PRECISIONS[dtype]
    arrays = Arrays.of(problem, 0)
    assert list(arrays.inputs) == ["x", "w", "bias", "residual", "clamp"]
    kinds = [row.x, row.w, row.sum, row.y, DTYPES["f32"]]
    assert [array.dtype for array in arrays.inputs.values()] == [kind.numpy for kind in kinds]
    assert arrays.plain.dtype == arrays.fused.dtype == row.y.numpy
    assert arrays.plain.shape == problem.y_shape and not np.array_equal(arrays.plain, arrays.fused)
    assert (arrays.x_zero is not None) == row.integer and (arrays.scales is not None) == row.scaled


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_sums_are_those_of_the_definition(dtype: str, layout: str) -> None:
    problem, row = SMALL.with_(dtype=dtype, layout=layout), PRECISIONS[dtype]
    arrays = Arrays.of(problem, 1)
    inputs = arrays.inputs
    x = exactly(inputs["x"], row.x.name) - (arrays.x_zero or 0)
    sums = summed(problem, x, exactly(inputs["w"], row.w.name))
    added = sums + exactly(inputs["bias"], row.sum.name).reshape(bias_shape(problem))
    residual = exactly(inputs["residual"], row.y.name)
    low, high = (Fraction(float(bound)) for bound in inputs["clamp"])
    if arrays.scales:
        along = bias_shape(problem)
        limits = float(low), float(high)
        whole = inputs["residual"]
        assert np.array_equal(arrays.scales.result(sums, along, row.y), arrays.plain)
        again = arrays.scales.result(added, along, row.y, whole, limits)
        assert np.array_equal(again, arrays.fused)
        return
    for result, expected in (
        (arrays.plain, sums),
        (arrays.fused, clipped(added + residual, low, high)),
    ):
        # Exact sums: only what y cannot hold is rounded, once.
        assert np.array_equal(result, to_stored(expected.astype(np.float64), row.y))


def clipped(array: np.ndarray, low: Fraction, high: Fraction) -> np.ndarray:
    return np.minimum(np.maximum(array, low), high)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("dtype", WHOLE)
def test_whole_inputs_reach_the_ends_of_their_types(dtype: str) -> None:
    problem, row = Conv2d(N=1, C=64, H=9, W=9, K=64, R=3, S=3, dtype=dtype), PRECISIONS[dtype]
    zeros = set()
    for seed in range(8):
        arrays = Arrays.of(problem, seed)
        for name, kind in (("x", row.x), ("w", row.w)):
            limits = np.iinfo(kind.numpy)
            found = arrays.inputs[name]
            assert (found.min(), found.max()) == (limits.min, limits.max)
        zeros.add(arrays.x_zero)
        if row.scaled:
            assert len(np.unique(arrays.plain)) > 100, "results are spread over the type"
    assert len(zeros) > 4


def test_sums_of_the_largest_layers_fit_32_bits() -> None:
    huge = Conv2d(N=1, C=1 << 19, H=1, W=1, K=2, R=1, S=1, dtype="s8:s8:s32")
    arrays = Arrays.of(huge, 0)
    x = arrays.inputs["x"].astype(np.int64)
    w = arrays.inputs["w"].astype(np.int64).reshape(2, -1)
    assert abs(w).max() >= 1
    sums = (x.reshape(1, -1) - arrays.x_zero) @ w.T
    flipped = abs(w).sum(axis=1).max() * 255
    assert np.array_equal(sums.reshape(-1), arrays.plain.reshape(-1))
    assert flipped < 1 << 31, "nor does a sum overflow whose x is flipped"


def neighbours(result: np.ndarray, row: Precision) -> Iterator[np.ndarray]:
    """The result with one element moved to the next number of its type, and one unwritten."""
    at = np.unravel_index(result.size // 3, result.shape)
    bits = result.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[row.y.bytes])
    for changed in (bits[at] ^ 1, ~bits[at]):
        wrong = bits.copy()
        wrong[at] = changed
        yield wrong.view(row.y.numpy)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_one_wrong_bit_is_noticed(dtype: str) -> None:
    problem = SMALL.with_(dtype=dtype)
    arrays = Arrays.of(problem, 2)
    for variant, right in (("plain", arrays.plain), ("fused", arrays.fused)):
        assert arrays.fault(variant, right.copy()) is None and arrays.worst(variant, right) == 0
        for wrong in neighbours(right, PRECISIONS[dtype]):
            told = arrays.fault(variant, wrong)
            assert told and told.startswith(f"1 of {right.size} elements differ, the first at [")
            assert arrays.worst(variant, wrong) == 1


@pytest.mark.parametrize("dtype", REAL)
def test_reals_are_rounded_to_their_types(dtype: str) -> None:
    problem, row = SMALL.with_(dtype=dtype), PRECISIONS[dtype]
    reals = Reals.of(problem, 3)
    kinds = {"x": row.x, "w": row.w, "bias": row.sum, "residual": row.y, "clamp": DTYPES["f32"]}
    assert {name: array.dtype for name, array in reals.inputs.items()} == {
        name: kind.numpy for name, kind in kinds.items()
    }
    for name in ("x", "w", "bias", "residual"):
        assert abs(values(reals.inputs[name], kinds[name])).max() <= 1
    x, w = (exactly(reals.inputs[name], kinds[name].name) for name in "xw")
    assert np.allclose(reals.sums, summed(problem, x, w).astype(float), rtol=1e-14, atol=1e-15)


def expected(reals: Reals, row: Precision, variant: str) -> np.ndarray:
    """The result in float64."""
    if variant == "plain":
        return reals.sums
    bias = reals.inputs["bias"].astype(np.float64).reshape(reals.along)
    residual = values(reals.inputs["residual"], row.y).astype(np.float64)
    return np.clip(reals.sums + bias + residual, *reals.inputs["clamp"].astype(np.float64))


@pytest.mark.parametrize("variant", ["plain", "fused"])
@pytest.mark.parametrize("dtype", REAL)
def test_rounding_y_is_inside_the_bound_and_two_places_are_not(dtype: str, variant: str) -> None:
    problem, row = SMALL.with_(dtype=dtype), PRECISIONS[dtype]
    reals = Reals.of(problem, 4)
    right = to_stored(expected(reals, row, variant).astype(np.float32), row.y)
    assert reals.fault(variant, right) is None and reals.worst(variant, right) <= 1
    if row.y.bytes == 2:
        assert reals.worst(variant, right) > 0.3, "the bound is no loose one"
    bits = right.view({2: np.uint16, 4: np.uint32}[row.y.bytes])
    at = np.unravel_index(int(np.argmax(abs(reals.sums))), reals.sums.shape)
    far = 2 if row.y.bytes == 2 else 1 << 12
    for change in (far, -far):
        wrong = bits.copy()
        wrong[at] = int(wrong[at]) + change
        told = reals.fault(variant, wrong.view(row.y.numpy))
        assert told and "1 of " in told and "elements are outside the error bound" in told
        assert reals.worst(variant, wrong.view(row.y.numpy)) > 1


@pytest.mark.parametrize("dtype", REAL)
def test_a_nan_is_never_inside(dtype: str) -> None:
    problem, row = SMALL.with_(dtype=dtype), PRECISIONS[dtype]
    reals = Reals.of(problem, 5)
    for bad in (np.nan, np.inf):
        wrong = to_stored(reals.sums.astype(np.float32), row.y)
        wrong.reshape(-1)[7] = to_stored(np.array([bad], np.float32), row.y)[0]
        assert reals.fault("plain", wrong) is not None


@pytest.mark.parametrize("dtype", REAL)
def test_a_sum_in_narrow_steps_is_outside(dtype: str) -> None:
    """Every partial sum rounded to bf16 or f16: what f32 accumulation is there for."""
    row = precision_named(dtype)
    kind = row.x if row.x.bytes == 2 else DTYPES["bf16"]
    problem = Conv2d(N=1, C=256, H=1, W=1, K=16, R=1, S=1, dtype=dtype)
    reals = Reals.of(problem, 6)
    x, w = (values(reals.inputs[name], getattr(row, name)) for name in "xw")
    total = np.zeros(problem.K, np.float32)
    for c in range(problem.C):
        step = total + x[0, 0, 0, c] * w[:, c, 0, 0]
        total = values(to_stored(step, kind), kind).astype(np.float32)
    got = to_stored(total.reshape(problem.y_shape), row.y)
    assert reals.fault("plain", got) is not None


def test_the_least_numbers_are_flushed_within_the_bound() -> None:
    """bf16 units take denormals as zeros."""
    problem = Conv2d(N=1, C=2, H=1, W=1, K=1, R=1, S=1, dtype="bf16:bf16:f32")
    reals = Reals.of(problem, 0)
    least = np.full(problem.y_shape, 2.0**-127)
    tiny = Reals(reals.inputs, least, least, problem.terms, reals.along, DTYPES["f32"])
    assert tiny.fault("plain", np.zeros(problem.y_shape, np.float32)) is None
    assert tiny.fault("plain", np.full(problem.y_shape, 2.0**-120, np.float32)) is not None
