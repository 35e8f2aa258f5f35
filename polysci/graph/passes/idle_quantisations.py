"""The pass that keeps in 8 bits what is moved and scaled between two quantisations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf

from polysci.graph.builder import GraphBuilder, rewrite_nodes
from polysci.graph.graph import Graph, Node
from polysci.graph.passes.fixed_shapes import RESHAPES
from polysci.graph.passes.integer_products import linear_of

FARTHEST = 255  # of a number of 8 bits from its zero
SAFE = 1 / 4  # what roundings in f32 cannot make of the half that another number is away


def remove_idle_quantisations(graph: Graph) -> Graph:
    """Take the numbers as they are where QuantizeLinear gives back those that were dequantised.

    In between they may be moved, and multiplied by a constant by which the scales differ.
    """
    if all(node.op != "quantize" for node in graph.nodes):
        return graph
    return rewrite_nodes(graph, partial(_replace, graph, graph.makers()))


def _replace(graph: Graph, makers: dict[str, Node], growing: GraphBuilder, node: Node) -> str:
    """Move the numbers that a QuantizeLinear gives back; an empty name where it rounds others."""
    after = linear_of(graph, node) if node.op == "quantize" else None
    if after is None:
        return ""
    moves, factor, maker = list[Node](), 1.0, makers.get(node.inputs[0])
    while maker and maker.op != "dequantize":
        if maker.op in ("transpose", *RESHAPES):
            moves.append(maker)
            maker = makers.get(maker.inputs[0])
            continue
        source, own = _factor(graph, maker)
        factor, maker = factor * own, makers.get(source)
    before = linear_of(graph, maker) if maker else None
    if maker is None or before is None or before.zero != after.zero:
        return ""
    ratio = float(before.scale) * factor / float(after.scale)
    if before.zero.dtype != after.zero.dtype or not abs(ratio - 1) * FARTHEST < SAFE:
        return ""
    x = maker.inputs[0]
    for move in reversed(moves):
        x = (growing.transpose(x, move.attributes["perm"]) if move.op == "transpose"
             else growing.reshape(x, growing.shape(move.outputs[0])))  # fmt: skip
    return growing.add("identity", (x,), growing.shape(x), growing.dtype(x))


def _factor(graph: Graph, node: Node) -> tuple[str, float]:
    """Return what a node multiplies by a known number, and the number; else infinity."""
    sides: Sequence[tuple[int, int]] = ((0, 1), (1, 0))[: {"mul": 2, "div": 1}.get(node.op, 0)]
    for at, other in sides:
        value = graph.constant_value(node.inputs[other])
        same = graph.tensors[node.inputs[at]].shape == graph.tensors[node.outputs[0]].shape
        if value is not None and value.size == 1 and same and value.item():
            return node.inputs[at], value.item() if node.op == "mul" else 1 / value.item()
    return "", inf
