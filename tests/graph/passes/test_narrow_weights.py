"""Constant weights of 4 and 8 bits in products: what goes into their blocks, and what comes out."""

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from polysci.frontends.onnx import reference
from polysci.graph.builder import GraphBuilder
from polysci.graph.graph import NARROW_MATMUL, Graph, QuantisedConstant, Tensor
from polysci.graph.passes.narrow_weights import blocks_of, keep_narrow_weights, widen_weights
from polysci.numerics.blocks import decode_blocks
from polysci.numerics.dtypes import BLOCK_TYPES
from tests.support.onnxmodels import reals

Array = np.ndarray
N, K = 6, 64
WHOLE = np.random.default_rng(0).integers(-128, 128, (N, K)).astype(np.int8)
SMALL = (WHOLE >> 4).astype(np.int8)
SCALE = np.abs(reals(N, 2, seed=1)) + np.float32(0.1)
X = {"x": reals(3, K)}


def constant(
    numbers: Array = WHOLE, scale: Array = SCALE, zero: Any = None, **words: int
) -> QuantisedConstant:
    zero = np.zeros(scale.shape, numbers.dtype) if zero is None else np.asarray(zero)
    return QuantisedConstant(numbers, scale, zero, **words)


GROUPS = {"axis": 1, "block": 32}
# Constant -> the type of its blocks.
CASES = {
    "8 bits": (constant(**GROUPS), "s8x32"),
    "4 bits in 8": (constant(SMALL, **GROUPS), "s4x32"),
    "unsigned 4 bits in 8": (
        constant((SMALL + 8).astype(np.uint8), zero=np.full((N, 2), 8, np.uint8), **GROUPS), "s4x32"
    ),
    "zeros between numbers": (
        constant((SMALL + 8).astype(np.uint8), zero=SCALE * 3, **GROUPS), "u4x32"
    ),
    "rows": (constant(SMALL, SCALE[:, 0]), "s4x64"),
    "one scale": (constant(WHOLE, SCALE[0, :1], np.full(1, 3, np.int8)), "u8x64"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_blocks_have_the_values_of_the_numbers(name: str) -> None:
    known, kind = CASES[name]
    found = blocks_of(known)
    assert found is not None and found[0] == kind
    values = decode_blocks(found[1].view(BLOCK_TYPES[kind].numpy))
    columns = known.scale.size // N or 1
    scale, zero = (
        np.repeat(part.astype(float).reshape(-1, columns), K // columns, 1)
        for part in (known.scale, known.zero)
    )
    np.testing.assert_allclose(values, (known.numbers - zero) * scale, rtol=1e-12, atol=1e-12)


def product(factor: Array | None = None, *, bias: bool = False) -> Graph:
    """``x @ numbers' * factor``, from numbers as they are."""
    empty = Graph("product", (), (), (), {}, {})
    graph, x = GraphBuilder(empty), Tensor("x", (3, K), "float32")
    graph.tensors["x"] = x
    w = graph.constant(WHOLE.astype(np.float32))
    unit = QuantisedConstant(WHOLE, np.ones(1, np.float32), np.zeros(1, np.int8))
    graph.dequantised = {w: unit}
    names = ("x", w, *[graph.constant(reals(N, seed=4))] * bias)
    y = graph.add("gemm", names, (3, N), transpose_b=1)
    if factor is not None:
        y = graph.add("mul", (y, graph.constant(factor)), (3, N))
    return graph.to_graph([x], [y])


def result(graph: Graph) -> Array:
    return reference.run(graph, X)[graph.outputs[0].name]


@pytest.mark.parametrize("factor", [SCALE[:, 0], np.float32(0.25), np.full(1, 3, np.float32)])
def test_a_scale_of_columns_goes_into_the_blocks(factor: Array) -> None:
    plain = product(np.asarray(factor))
    narrow = keep_narrow_weights(plain)
    assert [node.op for node in narrow.nodes] == [NARROW_MATMUL]
    np.testing.assert_allclose(result(narrow), result(plain), rtol=1e-5)


@pytest.mark.parametrize(
    ("factor", "bias", "ops"),
    [(SCALE[:, 0], True, [NARROW_MATMUL, "mul"]), (reals(3, 1), False, [NARROW_MATMUL, "mul"]),
     (reals(3, N), False, [NARROW_MATMUL, "mul"])],
)  # fmt: skip
def test_other_factors_stay(factor: Array, bias: bool, ops: list[str]) -> None:
    plain = product(factor, bias=bias)
    narrow = keep_narrow_weights(plain)
    assert [node.op for node in narrow.nodes] == ops
    np.testing.assert_allclose(result(narrow), result(plain), rtol=1e-5)


def test_a_product_that_others_read_stays_unscaled() -> None:
    plain = product(SCALE[:, 0])
    (inner, _) = plain.nodes
    plain = Graph(
        "both", plain.inputs, (*plain.outputs, plain.tensors[inner.outputs[0]]), plain.nodes,
        plain.constants, plain.tensors, dequantised=MappingProxyType(dict(plain.dequantised)),
    )  # fmt: skip
    assert [node.op for node in keep_narrow_weights(plain).nodes] == [NARROW_MATMUL, "mul"]


@pytest.mark.parametrize("bias", [False, True])
def test_weights_are_widened_where_no_kernel_takes_them(bias: bool) -> None:
    narrow = keep_narrow_weights(product(bias=bias))
    wide = widen_weights(narrow)
    assert [node.op for node in wide.nodes] == ["matmul", *["add"] * bias]
    np.testing.assert_allclose(result(wide), result(narrow), rtol=1e-6)
