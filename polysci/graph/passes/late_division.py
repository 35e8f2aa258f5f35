"""The pass that divides a product of a softmax by its sums, instead of all elements before it."""

from __future__ import annotations

import numpy as np

from polysci.graph.builder import GraphBuilder, rewrite_nodes
from polysci.graph.formulas import derive
from polysci.graph.graph import Graph, Node, rebuild


def divide_late(graph: Graph) -> Graph:
    """``softmax(x) @ w`` becomes ``(e @ w) / sum(e)`` of ``e = exp(x - max(x))``, computed once.

    So does ``(e * share) @ w``, where the share of each row is computed for others as well.
    """
    makers, readers = graph.makers(), graph.readers()
    kept = {tensor.name for tensor in graph.outputs}

    def late(node: Node) -> Node | None:
        """Return the softmax that a product alone reads, row by row, as its first factor."""
        maker = makers.get(node.input(0))
        if maker is None or node.op != "matmul":
            return None
        x, weights = (graph.tensors[name] for name in node.inputs)
        alone = len(readers[x.name]) == 1 and x.name not in {node.inputs[1], *kept}
        real = x.dtype == weights.dtype == "float32"  # sums of f16 could be too large
        matrices = min(len(x.shape), len(weights.shape)) > 1
        return maker if alone and real and matrices and divides_rows(maker) else None

    def divides_rows(node: Node) -> bool:
        """Return whether a node is softmax along the last axis, or its last step."""
        if node.op == "softmax":
            rank = len(graph.tensors[node.outputs[0]].shape)
            return node.attributes.get("axis", -1) in (-1, rank - 1)
        below = made_by("sub", made_by("exp", node, 0), 0) if node.op == "mul" else None
        rows = graph.tensors[node.inputs[1]].shape[-1:] == (1,) if below else False
        return rows and made_by("reduce_max", below, 1) is not None

    def made_by(op: str, node: Node | None, position: int) -> Node | None:
        """Return the node of an operator that makes an input of another one; None if none does."""
        maker = makers.get(node.input(position)) if node else None
        return maker if maker and maker.op == op else None

    def expand(growing: GraphBuilder, node: Node) -> str:
        maker = late(node)
        if maker is None:
            return ""
        text, (x, *share) = "y * share", maker.inputs
        if not share:
            shape = growing.shape(node.inputs[0])
            last = growing.constant(np.array([len(shape) - 1], np.int64))
            one = (*shape[:-1], 1)
            most = growing.add("reduce_max", (x, last), one)
            x = derive(growing, "exp(x - most)", x=x, most=most)
            text, share = "y / share", [growing.add("reduce_sum", (x, last), one)]
        product = growing.add("matmul", (x, node.inputs[1]), growing.shape(node.outputs[0]))
        return derive(growing, text, y=product, share=share[0])

    if not any(map(late, graph.nodes)):
        return graph
    changed = rewrite_nodes(graph, expand)
    return rebuild(changed, changed.nodes)
