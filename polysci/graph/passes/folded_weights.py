"""Scales and shifts a channel go into the weights and bias of the layer before them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from polysci.graph.graph import AFFINE, Graph, Node, rebuild
from polysci.numerics.arrays import Array

WEIGHTED = ("conv", "conv_transpose", "gemm")  # their weights can hold a scale a channel


def with_affine_together(graph: Graph) -> Graph:
    """Two AFFINE in a row become one."""

    def merge(node: Node, maker: Node) -> tuple[Node, dict[str, Array]] | None:
        if maker.op != AFFINE or node.op != AFFINE:
            return None
        first, second = (_parts(graph, affine) for affine in (maker, node))
        names = node.inputs[1:]
        values = (first[0] * second[0], first[1] * second[0] + second[1])
        changed = replace(node, inputs=(maker.inputs[0], *names))
        return changed, dict(zip(names, values, strict=True))

    return _pairs(graph, merge)


def with_folded_weights(graph: Graph) -> Graph:
    """An AFFINE behind a convolution or matrix product goes into its weights and bias."""

    def merge(node: Node, maker: Node) -> tuple[Node, dict[str, Array]] | None:
        weights = graph.constant(maker.input(1))
        if node.op != AFFINE or maker.op not in WEIGHTED or weights is None:
            return None
        bias = graph.constant(maker.input(2)) if maker.input(2) else np.zeros(1)
        if bias is None or (maker.op == "gemm" and not _plain(maker)):
            return None
        if bias.size != 1 and bias.shape[-1:] != (bias.size,):
            return None  # no number a column
        scale, shift = _parts(graph, node)
        factor = _factor(maker, weights, scale)
        if factor is None:
            return None
        scaled = np.empty(weights.shape, np.float32)  # products of f64, and no copy in f64 of all
        np.multiply(weights, factor, scaled, dtype=np.float64, casting="unsafe")
        moved = np.broadcast_to(bias.reshape(-1), scale.shape) * scale + shift
        names = (graph.part_name(node, "weights"), graph.part_name(node, "bias"))
        changed = replace(maker, inputs=(maker.inputs[0], *names), outputs=node.outputs)
        return changed, {names[0]: scaled, names[1]: moved.astype(np.float32)}

    return _pairs(graph, merge)


def _plain(gemm: Node) -> bool:
    """Whether a Gemm adds its bias as it is."""
    return bool(gemm.attributes.get("alpha", 1.0) == gemm.attributes.get("beta", 1.0) == 1.0)


def _factor(maker: Node, weights: Array, scale: Array) -> Array | None:
    """What weights are multiplied by, a number a channel; None where groups stand in the way."""
    if maker.op == "conv":
        return scale.reshape(-1, *[1] * (weights.ndim - 1))
    if maker.op == "gemm":
        return scale[:, None] if maker.attributes.get("transB") else scale
    if maker.attributes.get("group", 1) != 1:
        return None
    return scale.reshape(1, -1, *[1] * (weights.ndim - 2))


def _parts(graph: Graph, affine: Node) -> tuple[Array, Array]:
    return graph.constants[affine.inputs[1]], graph.constants[affine.inputs[2]]


Merge = Callable[[Node, Node], tuple[Node, dict[str, Array]] | None]


def _pairs(graph: Graph, merge: Merge) -> Graph:
    """Replace a node and the maker of its first input by one node, where nobody else reads that."""
    makers, readers = graph.makers(), graph.readers()
    kept = {tensor.name for tensor in graph.outputs}
    gone, changed, constants = set[str](), dict[str, Node](), dict[str, Array]()
    for node in graph.nodes:
        source = node.input(0)
        maker = makers.get(source)
        if maker is None or source in kept or len(readers[source]) > 1 or _touched(maker, changed):
            continue
        if merged := merge(node, maker):
            changed[node.outputs[0]], new = merged
            constants |= new
            gone.add(maker.outputs[0])
    nodes: Sequence[Node] = [
        changed.get(node.outputs[0], node) for node in graph.nodes if node.outputs[0] not in gone
    ]
    return rebuild(graph, nodes, constants)


def _touched(maker: Node, changed: Mapping[str, Node]) -> bool:
    return maker.outputs[0] in changed
