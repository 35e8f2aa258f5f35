"""Backward passes that compute tensors of the forward pass again, instead of keeping them.

A softmax is computed again from the scores before it and two numbers a row, the largest score and
the sum of exponentials, which stay (Milakov and Gimelshein, 2018; Dao et al., 2022).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from polysci.graph.builder import FLOATS, GraphBuilder
from polysci.graph.formulas import derive
from polysci.graph.graph import Graph, Node
from polysci.graph.operators import OPERATORS

SOFTMAX: Final = "softmax"
# Operators between what stays and what is computed again, by how they treat axes.
MOVES: Final = ("product", "reshaped", "transposed", "expanded")


def recomputable(graph: Graph, count: int) -> tuple[tuple[str, ...], ...]:
    """Return tensors that the backward pass could compute again, alike ones together.

    The first ``count`` nodes are the forward pass. What a tensor is computed from is smaller than
    the tensor, or stays in any case. Those that take most memory come first, and of several alike
    the one that is made first.
    """
    forward, outputs = _forward(graph, count), {tensor.name for tensor in graph.outputs}
    saved = _saved(graph, count) | outputs
    groups = dict[tuple[str, tuple[int, ...]], list[str]]()
    for name, node in forward.items():
        tensor = graph.tensors[name]
        free = name in saved and name not in outputs and tensor.dtype in FLOATS
        if not free or not _is_function(node):
            continue
        further = {*_sources(name, forward, saved - {name})} - saved
        if sum(graph.tensors[source].bytes for source in further) < tensor.bytes:
            groups.setdefault((node.op, tensor.shape), []).append(name)
    sizes = {tuple(names): sum(graph.tensors[name].bytes for name in names)
             for names in groups.values()}  # fmt: skip
    return tuple(sorted(sizes, key=lambda names: -sizes[names]))


def recompute(graph: Graph, count: int, tensors: Collection[str]) -> Graph:
    """Return the graph whose backward pass computes some tensors again before it reads them."""
    kept = _saved(graph, count) - {*tensors} | {tensor.name for tensor in graph.outputs}
    growing = _Recomputer(replace(graph, nodes=()), makers=_forward(graph, count), kept=kept)
    for at, node in enumerate(graph.nodes):
        if at < count:
            growing.add_forward(node, again=node.outputs[0] in tensors)
            continue
        inputs = [growing.again(name) if name in tensors else name for name in node.inputs]
        growing.nodes.append(replace(node, inputs=tuple(inputs)))
    return growing.to_graph(graph.inputs, [tensor.name for tensor in graph.outputs])


@dataclass(slots=True)
class _Recomputer(GraphBuilder):
    """A graph that grows, the ``makers`` of its forward pass, and which of their tensors stay.

    ``copies``: tensors that were computed again, by name. ``rows``: what stays of a softmax, the
    largest score of every row, and the reciprocal of the sum of exponentials.
    """

    makers: Mapping[str, Node] = field(default_factory=dict)
    kept: Collection[str] = ()
    copies: dict[str, str] = field(default_factory=dict)
    rows: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add_forward(self, node: Node, *, again: bool) -> None:
        """Add a node of the forward pass; of a softmax to be computed again, with what stays."""
        if not again or node.op != SOFTMAX:
            self.nodes.append(node)
            return
        x, y = node.inputs[0], self.tensors[node.outputs[0]]
        axis = int(node.attributes.get("axis", -1)) % len(y.shape)
        listed = self.constant(np.array([axis], np.int64))
        one = [1 if at == axis else size for at, size in enumerate(y.shape)]
        most = self.add("reduce_max", (x, listed), one, y.dtype)
        powers = derive(self, "exp(x - most)", x=x, most=most)
        share = derive(self, "1 / total", total=self.total(powers, [axis], keep=True))
        self.rows[y.name] = most, share
        self.put("mul", (powers, share), y)

    def again(self, name: str) -> str:
        """Return a tensor of the forward pass, computed again unless it stays."""
        if _stays(name, self.makers, self.kept):
            return name
        if name not in self.copies:
            node = self.makers[name]
            inputs = tuple(map(self.again, node.inputs))
            if name in self.rows:
                most, share = self.rows[name]
                text = "exp(x - most) * share"
                self.copies[name] = derive(self, text, x=inputs[0], most=most, share=share)
            else:
                tensor, words = self.tensors[name], dict(node.attributes)
                copy = self.add(node.op, inputs, tensor.shape, tensor.dtype, **words)
                self.copies[name] = copy
        return self.copies[name]


def _forward(graph: Graph, count: int) -> dict[str, Node]:
    """Return the nodes of the forward pass by what they make."""
    return {name: node for node in graph.nodes[:count] for name in node.outputs if name}


def _saved(graph: Graph, count: int) -> frozenset[str]:
    """Return the tensors of the forward pass that the backward pass reads."""
    read = {name for node in graph.nodes[count:] for name in node.inputs}
    return frozenset(read & _forward(graph, count).keys())


def _stays(name: str, makers: Mapping[str, Node], kept: Collection[str]) -> bool:
    """Return whether a tensor is not computed again: it is there, or its operator may take long."""
    node = makers.get(name)
    return node is None or name in kept or not (_is_function(node) or _moves(node))


def _sources(name: str, makers: Mapping[str, Node], kept: Collection[str]) -> Iterator[str]:
    """Yield the tensors of the forward pass that stay if one is computed again."""
    for source in makers[name].inputs:
        if source in makers and _stays(source, makers, kept):
            yield source
        elif source in makers:
            yield from _sources(source, makers, kept)


def _is_function(node: Node) -> bool:
    """Return whether a node is a function of elements, or a softmax."""
    own = OPERATORS[node.op].dims == "alike" if node.op in OPERATORS else False
    return len(node.outputs) == 1 and (own or node.op == SOFTMAX)


def _moves(node: Node) -> bool:
    """Return whether a node multiplies matrices, or moves elements."""
    return len(node.outputs) == 1 and node.op in OPERATORS and OPERATORS[node.op].dims in MOVES
