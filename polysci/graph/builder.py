"""A graph that grows: constants, nodes, moves that many need, and its backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.graph.graph import ConstantValues, Graph, Node, QuantisedConstant, Tensor
from polysci.numerics.arrays import Array

FLOATS = ("float32", "float64")


@dataclass(slots=True)
class GraphBuilder(ConstantValues):
    """A graph to whose end nodes are added."""

    graph: Graph
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    scalars: dict[tuple[float, str], str] = field(default_factory=dict)
    dequantised: dict[str, QuantisedConstant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes += self.graph.nodes
        self.constants |= self.graph.constants
        self.tensors |= self.graph.tensors
        self.dequantised |= self.graph.dequantised

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def dtype(self, name: str) -> str:
        return self.tensors[name].dtype

    def add(
        self, op: str, inputs: Sequence[str], shape: Sequence[int], dtype: str = "float32",
        **attributes: Any,
    ) -> str:  # fmt: skip
        """A node of one output, whose name this is."""
        return self.add_many(op, inputs, [(shape, dtype)], **attributes)[0]

    def add_many(
        self, op: str, inputs: Sequence[str], outputs: Sequence[tuple[Sequence[int], str]],
        **attributes: Any,
    ) -> tuple[str, ...]:  # fmt: skip
        """A node of outputs of such shapes and element types, whose names these are."""
        names = []
        for shape, dtype in outputs:
            names.append(self.fresh(op))
            self.tensors[names[-1]] = Tensor(names[-1], tuple(map(int, shape)), dtype)
        self.nodes.append(Node(op, tuple(inputs), tuple(names), MappingProxyType(attributes)))
        return tuple(names)

    def put(self, op: str, inputs: Sequence[str], output: Tensor, **attributes: Any) -> str:
        """A node that makes a tensor of a name that is free."""
        self.tensors[output.name] = output
        self.nodes.append(Node(op, tuple(inputs), (output.name,), MappingProxyType(attributes)))
        return output.name

    def fresh(self, base: str) -> str:
        """A name that no tensor has."""
        numbered = (f"{base}.{number}" for number in count(len(self.tensors)))
        return next(name for name in numbered if name not in self.tensors)

    def constant(self, array: Array) -> str:
        """A tensor of a value that is known."""
        name = self.fresh("constant")
        self.constants[name] = array
        self.tensors[name] = Tensor(name, array.shape, array.dtype.name)
        return name

    def number(self, value: float, dtype: str = "float32") -> str:
        """A constant without axes; the same one for the same value."""
        key = (float(value), dtype)
        if key not in self.scalars:
            self.scalars[key] = self.constant(np.array(value, dtype))
        return self.scalars[key]

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        if self.shape(x) == tuple(shape):
            return x
        target = self.constant(np.array(shape, np.int64))
        return self.add("reshape", (x, target), shape, self.dtype(x))

    def transpose(self, x: str, order: Sequence[int]) -> str:
        shape = [self.shape(x)[at] for at in order]
        return self.add("transpose", (x,), shape, self.dtype(x), perm=list(order))

    def expand(self, x: str, shape: Sequence[int]) -> str:
        """Repeat elements to a shape that this one broadcasts to."""
        if self.shape(x) == tuple(shape):
            return x
        target = self.constant(np.array(shape, np.int64))
        return self.add("expand", (x, target), shape, self.dtype(x))

    def total(self, x: str, axes: Iterable[int], *, keep: bool = False) -> str:
        """The sum over axes, which stay with one element where ``keep`` says so."""
        axes = sorted(axes)
        if not axes:
            return x
        shape = [
            1 if at in axes else size
            for at, size in enumerate(self.shape(x))
            if keep or at not in axes
        ]
        listed = self.constant(np.array(axes, np.int64))
        return self.add("reduce_sum", (x, listed), shape, self.dtype(x), keepdims=int(keep))

    def unbroadcast(self, x: str, shape: Sequence[int]) -> str:
        """The sum over the axes along which a tensor of ``shape`` was repeated."""
        own = self.shape(x)
        extra = len(own) - len(shape)
        axes = [
            at for at, size in enumerate(own)
            if at < extra or (shape[at - extra] == 1 and size != 1)
        ]  # fmt: skip
        return self.reshape(self.total(x, axes), shape)

    def to_graph(self, inputs: Sequence[Tensor], outputs: Sequence[str]) -> Graph:
        """The graph with all nodes, these inputs and these outputs."""
        return replace(
            self.graph, inputs=tuple(inputs), outputs=tuple(self.tensors[name] for name in outputs),
            nodes=tuple(self.nodes), constants=dict(self.constants), tensors=dict(self.tensors),
            dequantised=dict(self.dequantised),
        )  # fmt: skip


def rewrite_nodes(graph: Graph, rule: Callable[[GraphBuilder, Node], str]) -> Graph:
    """The graph with other nodes in place of some.

    The rule adds them, and returns what the last of them makes instead of the node's first output,
    under whose name it is known; an empty name where the node stays.
    """
    growing = GraphBuilder(replace(graph, nodes=()))
    for node in graph.nodes:
        start, result = len(growing.nodes), rule(growing, node)
        if not result:
            growing.nodes.append(node)
            continue
        del growing.tensors[result]
        growing.nodes[-1] = replace(growing.nodes[-1], outputs=node.outputs[:1])
        growing.nodes[start:] = [replace(part, name=node.name) for part in growing.nodes[start:]]
    return growing.to_graph(graph.inputs, [tensor.name for tensor in graph.outputs])


@dataclass(slots=True)
class Backward(GraphBuilder):
    """A graph to which rules add nodes.

    ``wanted`` are the tensors whose gradients are needed: parameters, and all that depends on them.
    """

    wanted: frozenset[str] = frozenset()

    def wants(self, name: str) -> bool:
        """Return whether the gradient of this tensor is needed."""
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
        """Add the gradients that reach one tensor; an empty name where none does."""
        if len(parts) < 2:
            return parts[0] if parts else ""
        return self.add("sum", parts, self.shape(parts[0]), self.dtype(parts[0]))


# (graph, node, gradients of its outputs) -> gradients of its inputs; empty names where none is.
Rule = Callable[[Backward, Node, Sequence[str]], Sequence[str]]


def known_integers(back: Backward, node: Node, position: int) -> list[int] | None:
    """Whole numbers of a constant input; None where there are none."""
    value = back.constant_value(node.input(position))
    return None if value is None else [int(number) for number in value.reshape(-1)]
