"""The backward pass of a graph while rules write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polysci.network.ir.graph import Node
from polysci.network.ir.growing import GrowingGraph

FLOATS = ("float32", "float64")


@dataclass(slots=True)
class Backward(GrowingGraph):
    """A graph to which rules add nodes.

    ``wanted`` are the tensors whose gradients are needed: parameters, and all that depends on them.
    """

    wanted: frozenset[str] = frozenset()

    def wants(self, name: str) -> bool:
        """Whether the gradient of this tensor is needed."""
        return name in self.wanted

    def sum(self, parts: Sequence[str]) -> str:
        """Of gradients that reach one tensor; empty where none does."""
        if len(parts) < 2:
            return parts[0] if parts else ""
        return self.add("Sum", parts, self.shape(parts[0]), self.dtype(parts[0]))


# (graph, node, gradients of its outputs) -> gradients of its inputs; empty names where none is.
Rule = Callable[[Backward, Node, Sequence[str]], Sequence[str]]
Rules = Mapping[str, Rule]


def known(back: Backward, node: Node, position: int, name: str) -> list[int] | None:
    """Whole numbers of an attribute, or of a constant input; None where there are none."""
    if name in node.attributes:
        return [int(number) for number in np.atleast_1d(node.attributes[name])]
    value = back.value(node.input(position))
    return None if value is None else [int(number) for number in value.reshape(-1)]
