"""The passes that drop operators which hand on their input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from polysci.graph.graph import Graph, Node, rebuild

# The number that changes nothing as the second operand; of a sum or a product also as the first.
NEUTRAL: Final = {"add": 0, "sub": 0, "mul": 1, "div": 1}
SYMMETRIC: Final = ("add", "mul")


def without_copies(graph: Graph) -> Graph:
    """Identity, Dropout, and casts to the type that is there hand on their input."""
    return _hand_on(graph, _copied)


def without_idle_operations(graph: Graph) -> Graph:
    """Operators that a constant or a shape makes idle hand on their input.

    These are sums with zeros, products with ones, choices by a constant condition that is the same
    everywhere, and Expand to the shape that is there already.
    """
    return _hand_on(graph, _unchanged)


def _hand_on(graph: Graph, unchanged: Callable[[Graph, Node], str]) -> Graph:
    """Return the graph whose readers of a node read the input that ``unchanged`` names instead."""
    same: dict[str, str] = {}
    nodes = list[Node]()
    kept = {tensor.name for tensor in graph.outputs}
    read = kept | set(graph.readers())
    for node in graph.nodes:
        node = replace(node, inputs=tuple(same.get(name, name) for name in node.inputs))
        used = node.outputs[0] in kept or read & set(node.outputs[1:])
        source = "" if used else unchanged(graph, node)
        if source:
            same[node.outputs[0]] = source
        else:
            nodes.append(node)
    return rebuild(graph, nodes)


def _copied(graph: Graph, node: Node) -> str:
    """Return the input that an idle node copies; an empty name for other nodes."""
    source = node.input(0)
    if node.op in ("cast", "cast_like"):
        idle = graph.tensors[source].dtype == graph.tensors[node.outputs[0]].dtype
    else:
        idle = node.op == "identity" or (node.op == "dropout" and not _trains(graph, node))
    return source if idle else ""


def _trains(graph: Graph, node: Node) -> bool:
    """Return whether a Dropout drops anything: where its third input is, or may be, true."""
    asked = node.input(2)
    value = graph.constant_value(asked) if asked else np.zeros(())
    return value is None or bool(value.any())


def _unchanged(graph: Graph, node: Node) -> str:
    """Return the input that the result equals by a constant or a shape, or an empty name."""
    if node.op == "expand":
        source = node.inputs[0]
    elif node.op == "select":
        source = _chosen(graph, node)
    else:
        source = _beside_neutral(graph, node) if node.op in NEUTRAL else ""
    result = graph.tensors[node.outputs[0]]
    own = graph.tensors[source] if source else None
    return source if own and (own.shape, own.dtype) == (result.shape, result.dtype) else ""


def _chosen(graph: Graph, node: Node) -> str:
    """Return the input that Where chooses everywhere, or an empty name."""
    condition = graph.constant_value(node.inputs[0])
    if condition is None or condition.all() != condition.any():
        return ""
    return node.inputs[1 if condition.all() else 2]


def _beside_neutral(graph: Graph, node: Node) -> str:
    """Return the operand beside a constant that changes nothing, or an empty name."""
    for at in (1, 0) if node.op in SYMMETRIC else (1,):
        value = graph.constant_value(node.inputs[at])
        if value is not None and (value == NEUTRAL[node.op]).all():
            return node.inputs[1 - at]
    return ""
