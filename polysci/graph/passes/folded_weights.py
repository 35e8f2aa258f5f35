"""The pass that puts scales and shifts of channels into the weights before them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polysci.graph.graph import AFFINE, Graph, Node
from polysci.graph.passes.affine_pairs import merge_pairs, parts_of
from polysci.numerics.arrays import Array

WEIGHTED = ("conv", "conv_transpose", "gemm")  # their weights can hold a scale a channel


def fold_weights(graph: Graph) -> Graph:
    """An AFFINE behind a convolution or matrix product goes into its weights and bias."""

    def merge(node: Node, maker: Node) -> tuple[Node, dict[str, Array]] | None:
        weights = graph.constant_value(maker.input(1))
        if node.op != AFFINE or maker.op not in WEIGHTED or weights is None:
            return None
        bias = graph.constant_value(maker.input(2)) if maker.input(2) else np.zeros(1)
        if bias is None or (maker.op == "gemm" and not is_plain(maker)):
            return None
        if bias.size != 1 and bias.shape[-1:] != (bias.size,):
            return None  # no number a column
        scale, shift = parts_of(graph, node)
        factor = _factor(maker, weights, scale)
        if factor is None:
            return None
        scaled = np.empty(weights.shape, np.float32)  # products of f64, and no copy in f64 of all
        np.multiply(weights, factor, scaled, dtype=np.float64, casting="unsafe")
        moved = np.broadcast_to(bias.reshape(-1), scale.shape) * scale + shift
        names = (graph.part_name(node, "weights"), graph.part_name(node, "bias"))
        changed = replace(maker, inputs=(maker.inputs[0], *names), outputs=node.outputs)
        return changed, {names[0]: scaled, names[1]: moved.astype(np.float32)}

    return merge_pairs(graph, merge)


def is_plain(gemm: Node) -> bool:
    """Return whether a Gemm adds its bias as it is."""
    return bool(gemm.attributes.get("alpha", 1.0) == gemm.attributes.get("beta", 1.0) == 1.0)


def _factor(maker: Node, weights: Array, scale: Array) -> Array | None:
    """Return the factor of weights, a number a channel; None where groups stand in the way."""
    if maker.op == "conv":
        return scale.reshape(-1, *[1] * (weights.ndim - 1))
    if maker.op == "gemm":
        return scale[:, None] if maker.attributes.get("transpose_b") else scale
    if maker.attributes.get("group", 1) != 1:
        return None
    return scale.reshape(1, -1, *[1] * (weights.ndim - 2))
