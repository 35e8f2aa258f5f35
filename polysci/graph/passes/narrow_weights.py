"""The pass that keeps constant weights of 4 and 8 bits narrow, where they multiply f32 rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd
from types import MappingProxyType
from typing import Final

import numpy as np

from polysci.graph.builder import GraphBuilder, rewrite_nodes
from polysci.graph.graph import NARROW_MATMUL, Graph, Node, QuantisedConstant, rebuild
from polysci.graph.passes.quantised_constants import constant_of
from polysci.graph.passes.readers import GraphReaders
from polysci.numerics.arrays import Array
from polysci.numerics.blocks import block_dtype, decode_blocks, make_blocks
from polysci.numerics.dtypes import BLOCK_TYPES, BLOCKS

# Element type of whole numbers -> whether they are signed.
_NARROW: Mapping[str, bool] = MappingProxyType(
    {"int4": True, "uint4": False, "int8": True, "uint8": False}
)
_HALF: Final = 8  # of the numbers of 4 bits


def keep_narrow_weights(graph: Graph) -> Graph:
    """Products by narrow weights in place of those by what DequantizeLinear makes of them.

    A scale that multiplies the columns of a product behind it goes into the blocks.
    """
    scaled = _scaled_products(graph)
    waiting = frozenset(product.outputs[0] for product, _ in scaled.values())
    graph = rewrite_nodes(graph, _Narrowing(graph.makers(), scaled, waiting).product)
    return replace(rebuild(graph, graph.nodes), dequantised=MappingProxyType({}))


def widen_weights(graph: Graph) -> Graph:
    """Return the graph with weights in f32 where they are narrow, for targets without kernels.

    Products that round their inputs stay as they are.
    """
    graph = rewrite_nodes(graph, _widen)
    return rebuild(graph, graph.nodes)


def _widen(graph: GraphBuilder, node: Node) -> str:
    kind = BLOCK_TYPES.get(node.attributes["weights"]) if node.op == NARROW_MATMUL else None
    blocks = graph.constant_value(node.inputs[1]) if kind else None
    if kind is None or blocks is None or kind.rounds_x:
        return ""
    values = decode_blocks(np.ascontiguousarray(blocks).view(kind.numpy)).T.astype(np.float32)
    shape, bias = graph.shape(node.outputs[0]), node.input(2)
    y = graph.add("matmul", (node.inputs[0], graph.constant(np.ascontiguousarray(values))), shape)
    return graph.add("add", (y, bias), shape) if bias else y


def _scaled_products(graph: Graph) -> dict[str, tuple[Node, str]]:
    """Return products by narrow constants that a Mul alone reads, and its other factor.

    They are known by the result of the Mul. The factor is a constant, one number or one a column.
    """
    readers, scaled = GraphReaders(graph, graph.makers(), graph.readers()), {}
    for node in graph.nodes:
        for x, factor in (node.inputs, node.inputs[::-1]) if node.op == "mul" else ():
            maker = readers.maker(x) if x in readers.makers else None
            if maker and _is_column_factor(graph, maker, factor):
                scaled[node.outputs[0]] = (maker, factor)
    return scaled


def _is_column_factor(graph: Graph, product: Node, name: str) -> bool:
    """Return whether a constant multiplies the columns of a product without a bias."""
    value, shape = graph.constant_value(name), graph.tensors[product.outputs[0]].shape
    if value is None or product.op not in ("matmul", "gemm") or product.input(2):
        return False
    narrow = product.inputs[1] in graph.dequantised and value.dtype == np.float32
    return narrow and value.ndim <= len(shape) and value.shape in ((), (1,), shape[-1:])


@dataclass(frozen=True, slots=True)
class _Narrowing:
    """The makers of tensors, and products that a Mul scales, by its result.

    ``waiting`` are the results of these products.
    """

    makers: Mapping[str, Node]
    scaled: Mapping[str, tuple[Node, str]]
    waiting: frozenset[str]

    def product(self, graph: GraphBuilder, node: Node) -> str:
        """Return the product in place of a MatMul, a Gemm or a Mul of one; empty where it stays."""
        own, factor = self.scaled.get(node.outputs[0], (node, ""))
        operands = None if node.outputs[0] in self.waiting else operands_of(graph, own)
        constant = constant_of(self.makers, graph, own.inputs[1]) if operands else None
        if operands is None or constant is None or constant.numbers.ndim != 2:
            return ""
        rows = constant if own.attributes.get("transpose_b") else constant.transposed
        value = graph.constant_value(factor)
        blocks = blocks_of(rows if value is None else _scale_rows(rows, value))
        if blocks is None:
            return ""
        (x, bias), (weights, array) = operands, blocks
        names = (x, graph.constant(array), *[bias] * bool(bias))
        return graph.add(NARROW_MATMUL, names, graph.shape(node.outputs[0]), weights=weights)


def _scale_rows(rows: QuantisedConstant, factor: Array) -> QuantisedConstant:
    """Return a constant (N, K) of which each row, or all, is multiplied by a number."""
    if not rows.block and (rows.scale.size == 1 or rows.axis % 2 == 0):
        return replace(rows, scale=rows.scale.reshape(-1) * factor.reshape(-1), axis=0)
    return replace(rows, scale=rows.scale * factor.reshape(-1, 1))


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


def blocks_of(w: QuantisedConstant) -> tuple[str, Array] | None:
    """Return the type and the bytes of the blocks of rows (N, K); None where K holds none.

    Scales and zeros are one, one a row or column, or one a block of a row. Numbers of 8 bits that
    4 bits hold take 4.
    """
    signed = _NARROW.get(w.numbers.dtype.name)
    n, k = w.numbers.shape
    if signed is None or not n or w.scale.dtype != np.float32:
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
    numbers = w.numbers.astype(np.int16)
    zeros = zeros if zeros.dtype.kind == "f" else zeros.astype(np.int16)
    least = -_HALF * signed
    bits = 4 if least <= numbers.min(initial=0) and numbers.max(initial=0) < least + 16 else 8
    centre = 0 if signed else 1 << (bits - 1)
    symmetric = bool((zeros == centre).all())
    shift = centre if symmetric else -(1 << (bits - 1)) * signed  # unsigned where zeros stay
    numbers, zeros = numbers - shift, zeros - shift
    dtype = block_dtype(bits, block, signed=symmetric)
    array = make_blocks(dtype, numbers, scale, None if symmetric else zeros)
    return f"{'s' if symmetric else 'u'}{bits}x{block}", array.view(np.uint8).reshape(n, -1)
