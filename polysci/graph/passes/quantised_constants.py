"""Tensors that are known as whole numbers, a scale and a zero point."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from polysci.graph.builder import GraphBuilder
from polysci.graph.graph import Node, QuantisedConstant


def constant_of(
    makers: Mapping[str, Node], graph: GraphBuilder, name: str
) -> QuantisedConstant | None:
    """Return the whole numbers that a constant stands for, or a node makes one of."""
    if known := graph.dequantised.get(name):
        return known
    node = makers.get(name)
    if node and node.op == "transpose" and node.attributes.get("perm", [1, 0]) == [1, 0]:
        inner = constant_of(makers, graph, node.inputs[0])
        return inner.transposed if inner and inner.numbers.ndim == 2 else None
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
    return QuantisedConstant(numbers, scale, zero, axis, block)
