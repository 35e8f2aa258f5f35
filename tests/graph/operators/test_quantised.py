"""Narrow whole numbers that stand for real ones: conversions of all types, blocks, products."""

from itertools import product

import numpy as np
import pytest

from polysci.errors import UnsupportedError
from polysci.graph.passes.table import simplify
from polysci.network.prepare import prepare
from polysci.program.stages import LayerStage
from tests.support.networks import read
from tests.support.nodecases import Case, faults, model_of

pytestmark = pytest.mark.sampled

NARROW = ("int8", "uint8", "int16", "uint16")
BYTES = ("uint8", "int8")


def whole(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    limits = np.iinfo(dtype)
    random = np.random.default_rng(seed)
    return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def reals(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=3, size=shape).astype(np.float32)


def scales(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Powers of 2: products with them are exact, so no result is near two whole numbers."""
    return np.exp2(-np.random.default_rng(seed).integers(3, 6, shape)).astype(np.float32)


# Shape of scales and zero points for a tensor of (4, 6, 3); attributes.
PARAMETERS = (((), {}), ((6,), {}), ((3,), {"axis": -1}), ((4, 2, 3), {"axis": 1, "block_size": 3}),
              ((4, 2, 3), {"axis": 1, "block_size": 4}))  # fmt: skip


@pytest.mark.parametrize("dtype", NARROW)
def test_conversions(dtype: str) -> None:
    cases = []
    for at, (shape, words) in enumerate(PARAMETERS):
        scale, zero = scales(shape, at), whole(shape, dtype, at) // 2
        block, along = words.get("block_size", 1), words.get("axis", 1)
        wide = [np.repeat(part, block, 1)[:, :6] if block > 1 else part for part in (scale, zero)]
        if wide[0].ndim == 1:
            wide = [part.reshape([-1 if n == along % 3 else 1 for n in range(3)]) for part in wide]
        x, q = reals((4, 6, 3), at), whole((4, 6, 3), dtype, at)
        limits = np.iinfo(dtype)
        exact = np.clip(np.rint(x / wide[0]) + wide[1], limits.min, limits.max).astype(dtype)
        cases.append(Case("QuantizeLinear", (x, scale, zero), words, exact=exact))
        back = ((q.astype(np.int64) - wide[1]) * wide[0]).astype(np.float32)
        cases.append(Case("DequantizeLinear", (q, scale, zero), words, exact=back))
    assert not faults(cases, 21)


def sums(a: np.ndarray, b: np.ndarray, a_zero: np.ndarray, b_zero: np.ndarray) -> np.ndarray:
    """With a zero point a row of A or a column of B."""
    rows = a_zero.reshape(-1, 1) if a_zero.ndim == 1 and a_zero.size > 1 else a_zero
    return (a.astype(np.int64) - rows) @ (b.astype(np.int64) - b_zero)


SHAPES = (((4, 6), (6, 5)), ((2, 3, 4, 6), (6, 5)), ((2, 4, 6), (2, 6, 5)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("fixed", [(), (1, 3), (1, 2, 3)])
def test_integer_products(fixed: tuple[int, ...]) -> None:
    cases = []
    for (left, right), x, w in product(SHAPES, BYTES, BYTES):
        a, b = whole(left, x), whole(right, w, 1)
        for zeros in ((np.array(3, x), np.array(2, w)), (whole((4,), x, 2), whole((5,), w, 3))):
            exact = sums(a, b, *zeros).astype(np.int32)
            cases.append(Case("MatMulInteger", (a, b, *zeros), {}, fixed, exact))
    none = whole((4, 6), "uint8"), whole((6, 5), "int8")
    exact = sums(*none, np.zeros(()), np.zeros(())).astype(np.int32)
    cases.append(Case("MatMulInteger", none, {}, tuple(at for at in fixed if at < 2), exact))
    assert not faults(cases, 10)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fixed", [(), (1, 2, 3, 4, 5, 6, 7)])
def test_scaled_products(fixed: tuple[int, ...]) -> None:
    cases = []
    for (left, right), (x, w, y) in product(SHAPES, product(BYTES, BYTES, BYTES)):
        a, b = whole(left, x), whole(right, w, 1)
        a_zero, y_scale, y_zero = np.array(3, x), np.array(8, np.float32), np.array(7, y)
        for shape in ((), (5,)):
            b_zero, b_scale, a_scale = whole(shape, w, 2) // 4, scales(shape), scales(())
            factor = a_scale.astype(np.float64) * b_scale / y_scale
            total = np.rint(sums(a, b, a_zero, b_zero) * factor) + y_zero
            limits = np.iinfo(y)
            exact = np.clip(total, limits.min, limits.max).astype(y)
            inputs = (a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)
            cases.append(Case("QLinearMatMul", inputs, {}, fixed, exact))
    assert not faults(cases, 10)


def test_known_weights_make_a_layer() -> None:
    inputs = (whole((4, 6), "uint8"), whole((6, 5), "int8"))
    graph = read(model_of([Case("MatMulInteger", inputs, {}, (1,))], 10))
    assert isinstance(prepare(simplify(graph)).program.stages[-1], LayerStage)


def test_activations_make_a_layer() -> None:
    """Zeros of B, and those of A that are computed, are corrected outside the layer."""
    a, b = whole((2, 3, 9), "uint8"), whole((2, 9, 5), "uint8", 1)
    zeros = np.array(3, "uint8"), np.array(200, "uint8")
    cases = [Case("MatMulInteger", (a, b, *zeros), {}, fixed,
                  sums(a, b, *zeros).astype(np.int32)) for fixed in ((2, 3), ())]  # fmt: skip
    graph = read(model_of(cases, 10))
    layers = [it for it in prepare(simplify(graph)).program.stages if isinstance(it, LayerStage)]
    assert [layer.x_zero for layer in layers] == [3, 0]
    assert not faults(cases, 10)


def test_scaled_activations_round_as_layers_do() -> None:
    a, b = whole((3, 9), "uint8"), whole((9, 5), "int8", 1)
    zero, y_zero = np.array(3, "uint8"), np.array(7, "uint8")
    scale, y_scale = np.array(0.25, np.float32), np.array(8, np.float32)
    cases = []
    for b_zero in (np.array(0, "int8"), np.array(5, "int8")):
        total = np.rint(sums(a, b, zero, b_zero) * 0.25 * 0.25 / 8) + 7
        exact = np.clip(total, 0, 255).astype(np.uint8)
        inputs = (a, scale, zero, b, scale, b_zero, y_scale, y_zero)
        cases.append(Case("QLinearMatMul", inputs, {}, (1, 2, 4, 5, 6, 7), exact))
    graph = read(model_of(cases, 10))
    layers = [it for it in prepare(simplify(graph)).program.stages if isinstance(it, LayerStage)]
    assert [str(layer.problem.dtype) for layer in layers] == ["u8:s8:u8", "u8:s8:s32"]
    assert not faults(cases, 10)


def test_scales_of_another_number_of_blocks_are_refused() -> None:
    case = Case("DequantizeLinear", (whole((4, 6), "int8"), scales((4, 4))),
                {"axis": 1, "block_size": 2})  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"\[4, 4\] parameters for blocks of 2 along axis 1"):
        prepare(simplify(read(model_of([case], 21))))
