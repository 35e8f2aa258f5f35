"""The pass that drops operators which hand on their input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polysci.graph.graph import Graph, Node, rebuild


def without_copies(graph: Graph) -> Graph:
    """Identity and Dropout hand on their input."""
    same: dict[str, str] = {}
    nodes = list[Node]()
    kept = {tensor.name for tensor in graph.outputs}
    read = kept | set(graph.readers())
    for node in graph.nodes:
        node = replace(node, inputs=tuple(same.get(name, name) for name in node.inputs))
        source = node.input(0)
        idle = node.op == "identity" or (node.op == "dropout" and not _trains(graph, node))
        if idle and not read & set(node.outputs[1:]) and node.outputs[0] not in kept:
            same[node.outputs[0]] = source
        else:
            nodes.append(node)
    return rebuild(graph, nodes)


def _trains(graph: Graph, node: Node) -> bool:
    """Return whether a Dropout drops anything: where its third input is, or may be, true."""
    asked = node.input(2)
    value = graph.constant_value(asked) if asked else np.zeros(())
    return value is None or bool(value.any())
