"""A node, and the values that it reads, for functions that compute it in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from polysci.graph.graph import Node, Tensor
from polysci.graph.reference.roundings import Nudge
from polysci.numerics.arrays import Array


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A node to compute for values that are known by name.

    ``results`` are the tensors that it makes, empty where that is not known yet. ``opset`` is the
    version of ONNX's operators. A ``nudge`` moves what is rounded to 8 bits.
    """

    node: Node
    known: Mapping[str, Array]
    results: tuple[Tensor, ...] = ()
    opset: int = 0
    nudge: Nudge | None = None

    @property
    def inputs(self) -> list[Array]:
        """The values of all inputs that are not left out."""
        return [self.known[name] for name in self.node.inputs if name]


# The results of a node; None: ONNX's reference has them.
Reference = Callable[[Evaluation], Sequence[Array] | None]
