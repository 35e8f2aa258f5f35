"""The pass that makes two scales and shifts in a row one; the merge of pairs of nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from polysci.graph.graph import AFFINE, Graph, Node, rebuild
from polysci.numerics.arrays import Array

Merge = Callable[[Node, Node], tuple[Node, dict[str, Array]] | None]


def merge_affine_pairs(graph: Graph) -> Graph:
    """Two AFFINE in a row become one."""

    def merge(node: Node, maker: Node) -> tuple[Node, dict[str, Array]] | None:
        if maker.op != AFFINE or node.op != AFFINE:
            return None
        first, second = (parts_of(graph, affine) for affine in (maker, node))
        names = node.inputs[1:]
        values = (first[0] * second[0], first[1] * second[0] + second[1])
        changed = replace(node, inputs=(maker.inputs[0], *names))
        return changed, dict(zip(names, values, strict=True))

    return merge_pairs(graph, merge)


def parts_of(graph: Graph, affine: Node) -> tuple[Array, Array]:
    """Return the scale and the shift of an AFFINE."""
    return graph.constants[affine.inputs[1]], graph.constants[affine.inputs[2]]


def merge_pairs(graph: Graph, merge: Merge) -> Graph:
    """Replace a node and the maker of its first input by one node, where nobody else reads that."""
    makers, readers = graph.makers(), graph.readers()
    kept = {tensor.name for tensor in graph.outputs}
    gone, changed, constants = set[str](), dict[str, Node](), dict[str, Array]()
    for node in graph.nodes:
        source = node.input(0)
        maker = makers.get(source)
        if (
            maker is None
            or source in kept
            or len(readers[source]) > 1
            or maker.outputs[0] in changed
        ):
            continue
        if merged := merge(node, maker):
            changed[node.outputs[0]], new = merged
            constants |= new
            gone.add(maker.outputs[0])
    nodes: Sequence[Node] = [
        changed.get(node.outputs[0], node) for node in graph.nodes if node.outputs[0] not in gone
    ]
    return rebuild(graph, nodes, constants)
