"""Nodes of a branch, loop or function with the names and attributes that they get outside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Body:
    """Nodes that take the place of one: ``results`` are the names of what they compute."""

    nodes: Sequence[Any]
    results: Sequence[str]
    initializers: Sequence[Any] = ()

    @property
    def made(self) -> dict[str, None]:
        """Return the results of the nodes, in order."""
        return dict.fromkeys(name for node in self.nodes for name in node.output if name)

    @property
    def names(self) -> dict[str, None]:
        """Return the names that are defined inside."""
        return dict.fromkeys(tensor.name for tensor in self.initializers) | self.made


def body_of_graph(graph: Any) -> Body:
    """Return the body of a subgraph."""
    return Body(graph.node, [value.name for value in graph.output], graph.initializer)


def rename_nodes(nodes: Iterable[Any], names: Mapping[str, str]) -> list[Any]:
    """Copy nodes with other names of tensors, in their subgraphs too."""
    copies = []
    for node in nodes:
        copy = type(node)()
        copy.CopyFrom(node)
        _rename(copy, names)
        copies.append(copy)
    return copies


def _rename(node: Any, names: Mapping[str, str]) -> None:
    node.input[:] = [names.get(name, name) for name in node.input]
    node.output[:] = [names.get(name, name) for name in node.output]
    for graph in subgraphs(node):
        body = body_of_graph(graph)
        own = {*body.names, *(value.name for value in graph.input)}
        outer = {name: new for name, new in names.items() if name not in own}
        for inner in graph.node:
            _rename(inner, outer)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)


def bind_attributes(nodes: Iterable[Any], values: Mapping[str, Any]) -> None:
    """Replace attributes that refer to those of a function; what has no value is left out."""
    for node in nodes:
        for attribute in list(node.attribute):
            if not attribute.ref_attr_name:
                continue
            name, value = attribute.name, values.get(attribute.ref_attr_name)
            if value is None:
                node.attribute.remove(attribute)
            else:
                attribute.CopyFrom(value)
                attribute.name = name
        for graph in subgraphs(node):
            bind_attributes(graph.node, values)


def subgraphs(node: Any) -> Iterator[Any]:
    """Yield the graphs among a node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def nodes_below(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield nodes and those of their subgraphs."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from nodes_below(graph.node)
