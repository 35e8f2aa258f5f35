"""The pass of changes of shape: all of them become Reshape."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from polysci.graph.graph import Graph, Node, rebuild
from polysci.numerics.arrays import Array

_EXACT = MappingProxyType({"allowzero": 1})
RESHAPES = ("flatten", "squeeze", "unsqueeze", "reshape")


def fix_shapes(graph: Graph) -> Graph:
    """Flatten, Squeeze and Unsqueeze become Reshape, to the shape that is known."""
    constants, nodes = dict[str, Array](), list[Node]()
    for node in graph.nodes:
        if node.op in RESHAPES and not _has_fixed_shape(graph, node):
            name, shape = graph.part_name(node, "shape"), graph.tensors[node.outputs[0]].shape
            constants[name] = np.array(shape, np.int64)
            node = Node("reshape", (node.inputs[0], name), node.outputs, _EXACT, node.name)
        nodes.append(node)
    return rebuild(graph, nodes, constants)


def _has_fixed_shape(graph: Graph, node: Node) -> bool:
    """Return whether a node is a Reshape that is told, as a constant, the shape of its output."""
    shape = graph.constant_value(node.input(1)) if node.op == "reshape" else None
    return shape is not None and np.array_equal(shape, graph.tensors[node.outputs[0]].shape)
