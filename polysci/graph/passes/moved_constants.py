"""The pass that computes changes of shape of constants."""

from __future__ import annotations

import numpy as np

from polysci.graph.graph import Graph, Node, rebuild


def move_constants(graph: Graph) -> Graph:
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
