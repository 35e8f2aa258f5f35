"""The pass that multiplies rows of several queries by keys that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import prod

from polysci.graph.builder import GraphBuilder, rewrite_nodes
from polysci.graph.graph import Graph, Node
from polysci.graph.passes.fixed_shapes import RESHAPES

MATRIX = 2  # axes


@dataclass(frozen=True, slots=True)
class _Atom:
    """Places of the source's memory order along an axis, ``copies`` if it holds repeated ones."""

    number: int
    extent: int
    copies: bool = False


Axis = tuple[_Atom, ...]


def group_heads(graph: Graph) -> Graph:
    """Multiply by a matrix that was expanded along an axis once, with more rows, in its place.

    Grouped queries of an attention are such rows: their keys and values are not copied for each.
    """
    if all(node.op != "expand" for node in graph.nodes):
        return graph
    return rewrite_nodes(graph, partial(_replace, graph, graph.makers()))


def _replace(graph: Graph, makers: dict[str, Node], growing: GraphBuilder, node: Node) -> str:
    """Add the product by the matrices that were expanded; an empty name where there are none."""
    if node.op != "matmul":
        return ""
    moves, maker = list[Node](), makers.get(node.inputs[1])
    while maker and maker.op in ("transpose", *RESHAPES):
        moves.append(maker)
        maker = makers.get(maker.inputs[0])
    if maker is None or maker.op != "expand":
        return ""
    axes = _axes_of(growing.shape(maker.inputs[0]), growing.shape(maker.outputs[0]))
    for move in reversed(moves):
        axes = axes and (
            [axes[at] for at in move.attributes["perm"]] if move.op == "transpose"
            else _regroup([*chain(*axes)], growing.shape(move.outputs[0]))
        )  # fmt: skip
    shape, out = growing.shape(node.inputs[0]), growing.shape(node.outputs[0])
    if not axes or shape[:-MATRIX] != growing.shape(node.inputs[1])[:-MATRIX]:
        return ""
    *outer, rows, columns = axes
    stack = [*chain(*outer)]
    if not stack or not stack[-1].copies or any(it.copies for it in (*stack[:-1], *rows, *columns)):
        return ""
    return _product(growing, node, maker.inputs[0], (stack, rows, columns), (shape, out))


def _axes_of(source: Sequence[int], target: Sequence[int]) -> list[Axis]:
    """Return the axes of an expanded tensor; none where it has more axes than its source."""
    pairs = zip(source, target, strict=False)
    return [
        (_Atom(at, size, size != own),) * (size > 1) for at, (own, size) in enumerate(pairs)
    ] if len(source) == len(target) else []  # fmt: skip


def _regroup(atoms: Sequence[_Atom], shape: Sequence[int]) -> list[Axis]:
    """Return axes of a shape out of whole atoms; none where one would be divided."""
    rest, axes = [*atoms], list[Axis]()
    for extent in shape:
        own = list[_Atom]()
        while prod(it.extent for it in own) < extent and rest:
            own.append(rest.pop(0))
        if prod(it.extent for it in own) != extent:
            return []
        axes.append(tuple(own))
    return [] if rest else axes


def _product(
    growing: GraphBuilder, node: Node, source: str, parts: tuple[Sequence[_Atom], Axis, Axis],
    shapes: tuple[Sequence[int], Sequence[int]],
) -> str:  # fmt: skip
    """Add the product of all rows that share a matrix of ``source``."""
    (*stack, copies), rows, columns = parts
    (*_, count, depth), out = shapes
    atoms = sorted((*stack, *rows, *columns), key=lambda atom: atom.number)
    order = [atoms.index(atom) for atom in (*stack, *rows, *columns)]
    outer = [atom.extent for atom in stack]
    whole = growing.reshape(source, [atom.extent for atom in atoms])
    if order != sorted(order):
        whole = growing.transpose(whole, order)
    matrices = growing.reshape(whole, [*outer, depth, out[-1]])
    grouped = growing.reshape(node.inputs[0], [*outer, copies.extent * count, depth])
    shape = [*outer, copies.extent * count, out[-1]]
    product = growing.add("matmul", (grouped, matrices), shape, growing.dtype(node.outputs[0]))
    return growing.reshape(product, out)
