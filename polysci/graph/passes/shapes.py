"""Nodes that reshape to a known shape, and constants that nodes move, become plain."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from polysci.graph.graph import Graph, Node, rebuild
from polysci.graph.passes.integer_products import RESHAPES
from polysci.numerics.arrays import Array


def with_fixed_shapes(graph: Graph) -> Graph:
    """Flatten, Squeeze and Unsqueeze become Reshape, to the shape that is known."""
    constants, nodes = dict[str, Array](), list[Node]()
    for node in graph.nodes:
        if node.op in RESHAPES and not _has_fixed_shape(graph, node):
            name, shape = graph.part_name(node, "shape"), graph.tensors[node.outputs[0]].shape
            constants[name] = np.array(shape, np.int64)
            exact = MappingProxyType({"allowzero": 1} if graph.opset >= 14 else {})
            node = Node("reshape", (node.inputs[0], name), node.outputs, exact, node.name)
        nodes.append(node)
    return rebuild(graph, nodes, constants)


def with_moved_constants(graph: Graph) -> Graph:
    """Reshape and Concat of constants become constants, as of parameters that a layer joins."""
    constants, kept = dict(graph.constants), {tensor.name for tensor in graph.outputs}
    nodes = list[Node]()
    for node in graph.nodes:
        values = [constants[name] for name in node.inputs if name in constants]
        moves = node.op in ("reshape", "concat") and node.outputs[0] not in kept
        if not moves or len(values) < len(node.inputs):
            nodes.append(node)
        elif node.op == "concat":
            constants[node.outputs[0]] = np.concatenate(values, node.attributes["axis"])
        else:
            constants[node.outputs[0]] = values[0].reshape(graph.tensors[node.outputs[0]].shape)
    return rebuild(graph, nodes, constants)


def _has_fixed_shape(graph: Graph, node: Node) -> bool:
    """Whether a node is a Reshape that is told, as a constant, the shape of its output."""
    told = graph.constant(node.input(1)) if node.op == "reshape" else None
    return told is not None and np.array_equal(told, graph.tensors[node.outputs[0]].shape)
