"""The pass that makes scales and shifts of channels one operation."""

from __future__ import annotations

import numpy as np

from polysci.graph.graph import AFFINE, Graph, Node, rebuild
from polysci.numerics.arrays import Array


def make_affine(graph: Graph) -> Graph:
    """Batch normalisation, and sums and products with a constant a channel, become AFFINE."""
    constants, nodes = dict[str, Array](), list[Node]()
    for node in graph.nodes:
        affine = _affine_of(graph, node)
        if affine:
            x, scale, shift = affine
            names = (graph.part_name(node, "scale"), graph.part_name(node, "shift"))
            constants |= zip(names, (scale, shift), strict=True)
            node = Node(AFFINE, (x, *names), node.outputs[:1], name=node.name)
        nodes.append(node)
    return rebuild(graph, nodes, constants)


def _affine_of(graph: Graph, node: Node) -> tuple[str, Array, Array] | None:
    """x, scale and shift of a node that is ``x * scale + shift``, a number a channel."""
    if not node.inputs or not node.outputs[0]:
        return None
    if graph.tensors[node.outputs[0]].dtype != "float32":
        return None
    if node.op == "batch_norm":
        parts = [graph.constant_value(name) for name in node.inputs[1:]]
        if len(parts) != 4 or any(part is None for part in parts) or any(node.outputs[1:]):
            return None
        gamma, beta, mean, variance = (part.astype(float) for part in parts if part is not None)
        scale = gamma / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
        return node.inputs[0], scale, beta - mean * scale
    if node.op not in ("add", "sub", "mul", "div") or len(node.inputs) != 2:
        return None
    left, right = (_by_channel(graph, name, node.outputs[0]) for name in node.inputs)
    if (left is None) == (right is None):
        return None
    if right is not None:
        factor, x = right, node.inputs[0]
        if node.op == "div":
            with np.errstate(divide="ignore", invalid="ignore"):
                factor = 1 / factor
        ways = {
            "add": (1.0, factor),
            "sub": (1.0, -factor),
            "mul": (factor, 0.0),
            "div": (factor, 0.0),
        }
    elif left is not None and node.op != "div":
        factor, x = left, node.inputs[1]
        ways = {"add": (1.0, factor), "sub": (-1.0, factor), "mul": (factor, 0.0)}
    else:
        return None
    if graph.tensors[x].shape != graph.tensors[node.outputs[0]].shape:
        return None
    scale, shift = (
        np.broadcast_to(np.asarray(part, np.float64), factor.shape) for part in ways[node.op]
    )
    return x, scale, shift


def _by_channel(graph: Graph, name: str, like: str) -> Array | None:
    """A constant that varies along axis 1 of ``like`` alone: a number a channel, in float64."""
    value, shape = graph.constant_value(name), graph.tensors[like].shape
    if value is None or len(shape) < 2 or value.ndim > len(shape):
        return None
    full = (1,) * (len(shape) - value.ndim) + value.shape
    if any(size != 1 for axis, size in enumerate(full) if axis != 1):
        return None
    return np.broadcast_to(value.reshape(-1).astype(np.float64), (shape[1],))
