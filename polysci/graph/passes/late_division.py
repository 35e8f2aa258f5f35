"""The pass that divides a product of a softmax by its sums, instead of all elements before it."""

from __future__ import annotations

import numpy as np

from polysci.graph.builder import GraphBuilder, rewrite_nodes
from polysci.graph.formulas import derive
from polysci.graph.graph import Graph, Node, rebuild


def divide_late(graph: Graph) -> Graph:
    """``softmax(x) @ w`` becomes ``(e @ w) / sum(e)`` of ``e = exp(x - max(x))``, computed once."""
    makers, readers = graph.makers(), graph.readers()
    kept = {tensor.name for tensor in graph.outputs}

    def late(node: Node) -> Node | None:
        """Return the softmax that a product alone reads, row by row, as its first factor."""
        maker = makers.get(node.input(0))
        if maker is None or (node.op, maker.op) != ("matmul", "softmax"):
            return None
        x, weights = (graph.tensors[name] for name in node.inputs)
        last = maker.attributes.get("axis", -1) in (-1, len(x.shape) - 1)
        alone = len(readers[x.name]) == 1 and x.name not in {node.inputs[1], *kept}
        real = x.dtype == weights.dtype == "float32"  # sums of f16 could be too large
        return (
            maker if last and alone and real and min(len(x.shape), len(weights.shape)) > 1 else None
        )

    def expand(growing: GraphBuilder, node: Node) -> str:
        softmax = late(node)
        if softmax is None:
            return ""
        x, shape = softmax.inputs[0], growing.shape(node.inputs[0])
        last = growing.constant(np.array([len(shape) - 1], np.int64))
        one = (*shape[:-1], 1)
        most = growing.add("reduce_max", (x, last), one)
        powers = derive(growing, "exp(x - most)", x=x, most=most)
        total = growing.add("reduce_sum", (powers, last), one)
        product = growing.add("matmul", (powers, node.inputs[1]), growing.shape(node.outputs[0]))
        return derive(growing, "y / total", y=product, total=total)

    if not any(map(late, graph.nodes)):
        return graph
    changed = rewrite_nodes(graph, expand)
    return rebuild(changed, changed.nodes)
