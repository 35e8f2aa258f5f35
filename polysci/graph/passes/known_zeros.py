"""The pass that takes zeros of 8-bit factors out of products with known weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polysci.graph.builder import GraphBuilder, rewrite_nodes
from polysci.graph.formulas import derive
from polysci.graph.graph import Graph, Node
from polysci.numerics.arrays import Array

OPERATORS = ("integer_conv", "integer_matmul")


def remove_known_zeros(graph: Graph) -> Graph:
    """No computed zero of x and no weights beyond 8 bits, in products with known weights."""
    usable = any(node.op in OPERATORS for node in graph.nodes)
    return rewrite_nodes(graph, _expand) if usable else graph


def _expand(graph: GraphBuilder, node: Node) -> str:
    """Add other nodes in place of one, and name their result; an empty name where it may stay."""
    weights = _weights_of(graph, node) if node.op in OPERATORS else None
    if weights is None:
        return ""
    x, zero, attributes = node.inputs[0], node.input(2), dict(node.attributes)
    computed = bool(zero) and graph.constant_value(zero) is None and graph.tensors[zero].size == 1
    if not computed and not (weights.size and (weights.min() < -128 or weights.max() > 127)):
        return ""
    if computed:
        x = _pad(graph, x, zero, attributes.pop("pads", ()))
    sums, low, shape = "", np.clip(weights, -128, 127), graph.shape(node.outputs[0])
    for part in (low, weights - low):
        if part is low or part.any():
            inputs = [x, graph.constant(part.astype(np.int8)), *[zero] * (not computed)]
            own = graph.add(
                node.op, [name for name in inputs if name], shape, "int32", **attributes
            )
            sums = derive(graph, "a + b", a=sums, b=own) if sums else own
    return _correct(graph, node.op, sums, zero, weights) if computed else sums


def _weights_of(graph: GraphBuilder, node: Node) -> Array | None:
    """The constant factor less its zeros, which are one, or one for each filter or column."""
    weights, zero = graph.constant_value(node.inputs[1]), graph.constant_value(node.input(3))
    if weights is None or (zero is None and node.input(3)):
        return None
    behind = weights.ndim - 1 if node.op == "integer_conv" else 0
    zeros = np.zeros(1, np.int64) if zero is None else zero.astype(np.int64).reshape(-1)
    moved: Array = weights.astype(np.int64) - zeros.reshape(-1, *[1] * behind)
    return moved


def _pad(graph: GraphBuilder, x: str, zero: str, pads: Sequence[int]) -> str:
    """x with its zero around it, so that every window has all its taps."""
    if not any(pads):
        return x
    half = len(pads) // 2
    around = np.array([0, 0, *pads[:half], 0, 0, *pads[half:]], np.int64)
    shape = np.add(graph.shape(x), around.reshape(2, -1).sum(0))
    inputs = (x, graph.constant(around), graph.reshape(zero, ()))
    return graph.add("pad", inputs, shape, graph.dtype(x))


def _correct(graph: GraphBuilder, op: str, sums: str, zero: str, weights: Array) -> str:
    """Less the zero times the sums of weights."""
    if op == "integer_conv":
        axes = tuple(range(1, weights.ndim))
        total = weights.sum(axes).reshape(-1, *[1] * (weights.ndim - 2))
    else:
        total = weights.sum(-2, keepdims=True)
    point: Any = graph.add("cast", (graph.reshape(zero, ()),), (), "int32")
    factor = graph.constant(total.astype(np.int32))
    return derive(graph, "sums - factor * point", sums=sums, factor=factor, point=point)
