"""The pass that divides a product of a softmax by its sums, instead of all elements before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polysci.graph.builder import GraphBuilder, rewrite_nodes
from polysci.graph.formulas import derive
from polysci.graph.graph import Graph, Node, rebuild
from polysci.graph.passes.readers import GraphReaders


def divide_late(graph: Graph) -> Graph:
    """``softmax(x) @ w`` becomes ``(e @ w) / sum(e)`` of ``e = exp(x - max(x))``, computed once.

    So does ``(e * share) @ w``, where the share of each row is computed for others as well. Where a
    softmax that is no number becomes 0, so does the quotient: a row of it is no number as a whole.
    """
    division = _Division(graph, graph.makers(), graph.readers())
    if not any(map(division.source, graph.nodes)):
        return graph
    changed = rewrite_nodes(graph, division.expand)
    return rebuild(changed, changed.nodes)


@dataclass(frozen=True, slots=True)
class _LateShares:
    """The softmax that a product reads; ``guarded``: by a choice of 0 where it is no number."""

    softmax: Node
    guarded: bool


@dataclass(frozen=True, slots=True)
class _Division(GraphReaders):
    """Find products of a softmax, and divide them."""

    def source(self, node: Node) -> _LateShares | None:
        """Return the softmax that a product alone reads, row by row, as its first factor."""
        if node.op != "matmul" or node.inputs[0] == node.inputs[1]:
            return None
        x, weights = (self.graph.tensors[name] for name in node.inputs)
        real = x.dtype == weights.dtype == "float32"  # sums of f16 could be too large
        if not real or min(len(x.shape), len(weights.shape)) < 2:
            return None
        name, maker = x.name, self.maker(x.name)
        if maker and maker.op == "reshape" and self._rows(maker.inputs[0]) == self._rows(name):
            name, maker = maker.inputs[0], self.maker(maker.inputs[0])
        guarded = maker is not None and self.is_guard(maker)
        if maker and guarded:
            maker = self.maker(maker.inputs[2], 2)
        return _LateShares(maker, guarded) if maker and self._divides_rows(maker) else None

    def _rows(self, name: str) -> int:
        """Return how long the rows of a tensor are."""
        return (1, *self.graph.tensors[name].shape)[-1]

    def _divides_rows(self, node: Node) -> bool:
        """Return whether a node is softmax along the last axis, or its last step."""
        if node.op == "softmax":
            rank = len(self.graph.tensors[node.outputs[0]].shape)
            return node.attributes.get("axis", -1) in (-1, rank - 1)
        below = self._made_by("sub", self._made_by("exp", node, 0), 0) if node.op == "mul" else None
        rows = self.graph.tensors[node.inputs[1]].shape[-1:] == (1,) if below else False
        return rows and self._made_by("reduce_max", below, 1) is not None

    def _made_by(self, op: str, node: Node | None, position: int) -> Node | None:
        """Return the node of an operator that makes an input of another one; None if none does."""
        maker = self.makers.get(node.input(position)) if node else None
        return maker if maker and maker.op == op else None

    def expand(self, growing: GraphBuilder, node: Node) -> str:
        """Add the product and the quotient; return an empty name for all other nodes."""
        source = self.source(node)
        if source is None:
            return ""
        text, (x, *share) = "y * share", source.softmax.inputs
        if not share:
            shape = growing.shape(x)
            last = growing.constant(np.array([len(shape) - 1], np.int64))
            one = (*shape[:-1], 1)
            most = growing.add("reduce_max", (x, last), one)
            x = derive(growing, "exp(x - most)", x=x, most=most)
            text, share = "y / share", [growing.add("reduce_sum", (x, last), one)]
        if source.guarded:
            text = f"select(isnan(share), 0, {text})"
        shape = growing.shape(node.inputs[0])
        product = growing.add(
            "matmul", (growing.reshape(x, shape), node.inputs[1]), growing.shape(node.outputs[0])
        )
        rows = growing.reshape(share[0], (*shape[:-1], 1))
        return derive(growing, text, y=product, share=rows)
