"""The pass that keeps constant weights of 4 and 8 bits narrow, where they multiply f32 rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import gcd
from types import MappingProxyType

import numpy as np

from polysci.graph.builder import GraphBuilder, rewrite_nodes
from polysci.graph.graph import NARROW_MATMUL, Graph, Node, QuantisedConstant, rebuild
from polysci.numerics.arrays import Array
from polysci.numerics.blocks import block_dtype, make_blocks
from polysci.numerics.dtypes import BLOCKS

# Element type of whole numbers -> bits, and whether they are signed.
_NARROW: Mapping[str, tuple[int, bool]] = MappingProxyType(
    {"int4": (4, True), "uint4": (4, False), "int8": (8, True), "uint8": (8, False)}
)


def keep_narrow_weights(graph: Graph) -> Graph:
    """Products by narrow weights in place of those by what DequantizeLinear makes of them."""
    makers = graph.makers()
    graph = rewrite_nodes(graph, partial(_narrow_product, makers))
    return replace(rebuild(graph, graph.nodes), dequantised=MappingProxyType({}))


def _narrow_product(makers: Mapping[str, Node], graph: GraphBuilder, node: Node) -> str:
    """Return the product that takes the place of a MatMul or Gemm; empty where the node stays."""
    operands = operands_of(graph, node)
    constant = _constant_of(makers, graph, node.inputs[1]) if operands else None
    if operands is None or constant is None:
        return ""
    turned = bool(node.attributes.get("transpose_b"))
    blocks = blocks_of(constant if turned else constant.transposed)
    if blocks is None:
        return ""
    (x, bias), (weights, array) = operands, blocks
    names = (x, graph.constant(array), *[bias] * bool(bias))
    return graph.add(NARROW_MATMUL, names, graph.shape(node.outputs[0]), weights=weights)


def operands_of(graph: GraphBuilder, node: Node) -> tuple[str, str] | None:
    """Return x and the bias, if any, of a product whose weights can be narrow."""
    defaults = {"alpha": 1.0, "beta": 1.0, "transpose_a": 0}
    plain = all(node.attributes.get(word, usual) == usual for word, usual in defaults.items())
    if node.op not in ("matmul", "gemm") or not plain or graph.dtype(node.inputs[0]) != "float32":
        return None
    x, bias = node.inputs[0], node.input(2)
    if not all(graph.shape(x)) or len(graph.shape(x)) < 2:
        return None
    if bias and graph.shape(bias) != graph.shape(node.outputs[0])[-1:]:
        return None
    return x, bias


def _constant_of(
    makers: Mapping[str, Node], graph: GraphBuilder, name: str
) -> QuantisedConstant | None:
    """Return the whole numbers that a constant matrix stands for, or a node makes one of."""
    if known := graph.dequantised.get(name):
        return known if known.numbers.ndim == 2 else None
    node = makers.get(name)
    if node and node.op == "transpose" and node.attributes.get("perm", [1, 0]) == [1, 0]:
        inner = _constant_of(makers, graph, node.inputs[0])
        return inner and inner.transposed
    if node is None or node.op != "dequantize":
        return None
    values = [graph.constant_value(name) for name in node.inputs if name]
    if any(value is None for value in values):
        return None
    numbers, scale, *zeros = (value for value in values if value is not None)
    zero = zeros[0] if zeros else np.zeros(1, numbers.dtype)
    axis, block = (
        int(node.attributes.get(name, at)) for name, at in (("axis", 1), ("block_size", 0))
    )
    return QuantisedConstant(numbers, scale, zero, axis, block) if numbers.ndim == 2 else None


def blocks_of(w: QuantisedConstant) -> tuple[str, Array] | None:
    """Return the type and the bytes of the blocks of rows (N, K); None where K holds none.

    Scales and zeros are one, one a row or column, or one a block of a row.
    """
    bits, signed = _NARROW.get(w.numbers.dtype.name, (0, False))
    n, k = w.numbers.shape
    if not bits or not n or w.scale.dtype != np.float32:
        return None
    if w.axis % 2 != bool(w.block) and w.scale.size > 1:
        return None  # several along N share one, or each step of K has its own
    own = w.scale if w.block else w.scale.reshape(-1, 1)
    zero = w.zero.reshape(own.shape if w.zero.size == own.size else (1, 1))
    parts = own.shape[1]
    if own.shape[0] not in (1, n) or (w.block or k) * parts != k:
        return None
    block = gcd(k // parts, BLOCKS[-1])
    if block not in BLOCKS:
        return None
    scale, zeros = (
        np.repeat(np.broadcast_to(part, (n, parts)), k // parts // block, axis=1)
        for part in (own, zero)
    )
    numbers, zeros = w.numbers.astype(np.int16), zeros.astype(np.int16)
    centre = 0 if signed else 1 << (bits - 1)
    symmetric = bool((zeros == centre).all())
    shift = centre if symmetric else -(1 << (bits - 1)) * signed  # unsigned where zeros stay
    numbers, zeros = numbers - shift, zeros - shift
    dtype = block_dtype(bits, block, signed=symmetric)
    array = make_blocks(dtype, numbers, scale, None if symmetric else zeros)
    return f"{'s' if symmetric else 'u'}{bits}x{block}", array.view(np.uint8).reshape(n, -1)
