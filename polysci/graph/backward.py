"""The backward pass of a graph while rules write it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from polysci.graph.builder import GraphBuilder
from polysci.graph.graph import Node, Tensor

FLOATS = ("float32", "float64")


@dataclass(slots=True)
class Backward(GraphBuilder):
    """A graph to which rules add nodes.

    ``wanted`` are the tensors whose gradients are needed: parameters, and all that depends on them.
    """

    wanted: frozenset[str] = frozenset()

    def wants(self, name: str) -> bool:
        """Whether the gradient of this tensor is needed."""
        return name in self.wanted

    def also(self, node: Node, position: int, shape: Sequence[int], dtype: str) -> str:
        """An output of a forward node, which makes it from now on if it did not before."""
        at = next(at for at, own in enumerate(self.nodes) if own.outputs[0] == node.outputs[0])
        outputs = [*self.nodes[at].outputs, *[""] * (position + 1 - len(self.nodes[at].outputs))]
        if not outputs[position]:
            outputs[position] = self.fresh(f"{node.op}.{position}")
            self.tensors[outputs[position]] = Tensor(outputs[position], tuple(shape), dtype)
            self.nodes[at] = replace(self.nodes[at], outputs=tuple(outputs))
        return outputs[position]

    def sum(self, parts: Sequence[str]) -> str:
        """Of gradients that reach one tensor; empty where none does."""
        if len(parts) < 2:
            return parts[0] if parts else ""
        return self.add("sum", parts, self.shape(parts[0]), self.dtype(parts[0]))


# (graph, node, gradients of its outputs) -> gradients of its inputs; empty names where none is.
Rule = Callable[[Backward, Node, Sequence[str]], Sequence[str]]


def known(back: Backward, node: Node, position: int, name: str) -> list[int] | None:
    """Whole numbers of an attribute, or of a constant input; None where there are none."""
    if name in node.attributes:
        return [int(number) for number in np.atleast_1d(node.attributes[name])]
    value = back.value(node.input(position))
    return None if value is None else [int(number) for number in value.reshape(-1)]
