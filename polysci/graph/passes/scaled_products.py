"""The passes that put a scale into the constant weights of what is scaled, or behind a product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from polysci.graph.graph import AFFINE, Graph, Node, rebuild
from polysci.graph.passes.affine_pairs import parts_of
from polysci.graph.passes.folded_weights import is_plain
from polysci.numerics.arrays import Array

MOVES = ("reshape", "transpose")


def scale_products(graph: Graph) -> Graph:
    """Multiply weights by the number that scales results, behind moves, sums and products of these.

    An attention then scales neither queries nor scores, but the weights that project the queries.
    """
    while scaled := _join_one(graph) or _scale_one(graph):
        graph = scaled
    return graph


def delay_scales(graph: Graph) -> Graph:
    """Scale results of products instead of factors that are larger."""
    while delayed := _delay_one(graph):
        graph = delayed
    return graph


def scale_of(graph: Graph, node: Node | None) -> float | None:
    """Return the number by which an AFFINE multiplies; None of any other node."""
    if node is None or node.op != AFFINE:
        return None
    (scale, *others), shift = (part.reshape(-1) for part in parts_of(graph, node))
    return None if any(shift) or any(other != scale for other in others) else float(scale)


def _scale_one(graph: Graph) -> Graph | None:
    """Return the graph without the first AFFINE that is a number by which weights can be scaled."""
    makers, readers = graph.makers(), graph.readers()
    for node in graph.nodes:
        factor = scale_of(graph, node)
        if factor is None or node.inputs[0] not in makers:
            continue
        scaling = _Scaling(graph, makers, readers, factor)
        if scaling.scale(node.inputs[0]):
            maker = makers[node.inputs[0]]
            changed = scaling.nodes.get(maker.outputs[0], maker)
            scaling.nodes[maker.outputs[0]] = replace(changed, outputs=node.outputs)
            nodes = (scaling.nodes.get(it.outputs[0], it) for it in graph.nodes if it is not node)
            return rebuild(graph, nodes, scaling.constants)
    return None


def _join_one(graph: Graph) -> Graph | None:
    """Return the graph with the first two scales of both factors of a product as one."""
    makers, readers = graph.makers(), graph.readers()
    for node in graph.nodes:
        if node.op != "matmul" or node.inputs[0] == node.inputs[1]:
            continue
        first, second = (_scaled(graph, makers, readers, name) for name in node.inputs)
        factor = scale_of(graph, second)
        if first is None or second is None or factor is None:
            continue
        scaling = _Scaling(graph, makers, readers, factor)
        scaling.scale_constants(first, [1, 2])
        nodes = [scaling.nodes.get(it.outputs[0], it) for it in graph.nodes if it is not second]
        source, name = second.inputs[0], second.outputs[0]
        nodes = [
            replace(it, inputs=tuple(source if own == name else own for own in it.inputs))
            for it in nodes
        ]
        return rebuild(graph, nodes, scaling.constants)
    return None


def _scaled(
    graph: Graph, makers: Mapping[str, Node], readers: Mapping[str, list[Node]], name: str
) -> Node | None:
    """Return the AFFINE that scales a tensor behind moves that nobody else reads; None without."""
    kept = {tensor.name for tensor in graph.outputs}
    while (maker := makers.get(name)) and len(readers[name]) == 1 and name not in kept:
        if maker.op not in MOVES:
            return maker if scale_of(graph, maker) is not None else None
        name = maker.inputs[0]
    return None


def _delay_one(graph: Graph) -> Graph | None:
    """Return the graph with the first scale of a factor behind the product, where that is less."""
    makers, readers = graph.makers(), graph.readers()
    for node in graph.nodes:
        for name in node.inputs if node.op == "matmul" and node.inputs[0] != node.inputs[1] else ():
            maker = _scaled(graph, makers, readers, name)
            if maker and _elements(graph, maker.outputs[0]) > _elements(graph, node.outputs[0]):
                return _delay(graph, node, maker)
    return None


def _elements(graph: Graph, name: str) -> int:
    return prod(graph.tensors[name].shape)


def _delay(graph: Graph, product: Node, affine: Node) -> Graph:
    """Return the graph with an AFFINE behind a product, and not before it."""
    whole, name = product.outputs[0], graph.part_name(product, "unscaled")
    rank = len(graph.tensors[whole].shape)
    count = graph.tensors[whole].shape[1] if rank > 1 else 1
    parts = [graph.constants[part].reshape(-1)[:1] for part in affine.inputs[1:]]
    names = [graph.part_name(product, part) for part in ("scale", "shift")]
    constants = {own: np.repeat(part, count) for own, part in zip(names, parts, strict=True)}
    nodes = list[Node]()
    for node in graph.nodes:
        if node is affine:
            continue
        inputs = [affine.inputs[0] if it == affine.outputs[0] else it for it in node.inputs]
        node = replace(node, inputs=tuple(inputs))
        if whole not in node.outputs:
            nodes.append(node)
            continue
        nodes.append(replace(node, outputs=(name,)))
        nodes.append(replace(affine, inputs=(name, *names), outputs=(whole,)))
    tensors = {**graph.tensors, name: replace(graph.tensors[whole], name=name)}
    return rebuild(replace(graph, tensors=tensors), nodes, constants)


@dataclass(slots=True)
class _Scaling:
    """The nodes, by what they made, and the constants of a graph where a tensor is scaled."""

    graph: Graph
    makers: Mapping[str, Node]
    readers: Mapping[str, list[Node]]
    factor: float
    nodes: dict[str, Node] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)

    def scale(self, name: str) -> bool:
        """Scale a tensor; return whether one reader and constant weights permit that."""
        node, graph = self.makers.get(name), self.graph
        outputs = {tensor.name for tensor in graph.outputs}
        if node is None or name in outputs or len(self.readers[name]) > 1:
            return False
        constants = [at for at, part in enumerate(node.inputs) if part in graph.constants]
        match node.op:
            case op if op in MOVES:
                return self.scale(node.inputs[0])
            case "affine":
                return self.scale_constants(node, [1, 2])
            case "add" if len(constants) == 1:
                return self.scale_constants(node, constants) and self.scale(
                    node.inputs[1 - constants[0]]
                )
            case "matmul" if constants:
                return self.scale_constants(node, constants[:1])
            case "matmul" if node.inputs[0] != node.inputs[1]:
                return self.scale(node.inputs[0])
            case "gemm" if is_plain(node) and constants == [*range(1, len(node.inputs))]:
                return self.scale_constants(node, constants)
        return False

    def scale_constants(self, node: Node, places: list[int]) -> bool:
        """Multiply inputs of a node that are constants."""
        inputs = [*node.inputs]
        for at in places:
            value = self.graph.constants[inputs[at]]
            inputs[at] = self.graph.part_name(node, f"scaled{at}")
            self.constants[inputs[at]] = (value * np.float64(self.factor)).astype(value.dtype)
        self.nodes[node.outputs[0]] = replace(node, inputs=tuple(inputs))
        return True
