"""Makers and readers of tensors, for passes that replace what one node alone reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polysci.graph.graph import Graph, Node


@dataclass(frozen=True, slots=True)
class GraphReaders:
    """A graph with ``makers`` and ``readers`` of its tensors."""

    graph: Graph
    makers: Mapping[str, Node]
    readers: Mapping[str, Sequence[Node]]

    def maker(self, name: str, readers: int = 1) -> Node | None:
        """Return the node that makes a tensor with so many readers; None where users read it."""
        kept = any(tensor.name == name for tensor in self.graph.outputs)
        return None if kept or len(self.readers[name]) != readers else self.makers.get(name)

    def is_guard(self, node: Node) -> bool:
        """Return whether a node is ``select(isnan(x), 0, x)``."""
        if node.op != "select":
            return False
        test, zero = self.maker(node.inputs[0]), self.graph.constants.get(node.inputs[1])
        if test is None or test.op != "isnan" or test.inputs[0] != node.inputs[2]:
            return False
        return zero is not None and zero.size == 1 and not zero.any()
