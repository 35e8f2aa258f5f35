"""The pass that gathers numbers of 4 and 8 bits, and dequantises what was gathered."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np

from polysci.graph.builder import GraphBuilder, rewrite_nodes
from polysci.graph.graph import ELEMENTS, Graph, Node, QuantisedConstant
from polysci.graph.passes.quantised_constants import constant_of
from polysci.loop_ir.expressions import (
    Computed,
    Expr,
    Index,
    Load,
    Lookup,
    apply,
    axis,
)

# Type of numbers in a table -> that in which they are stored.
_STORED: Mapping[str, str] = MappingProxyType(
    {"int4": "int8", "uint4": "uint8", "int8": "int8", "uint8": "uint8"}
)
_INDICES: Final = ("int32", "int64")


def keep_narrow_tables(graph: Graph) -> Graph:
    """Gather of the numbers of a dequantised table in place of that of what they stand for.

    The rows are dequantised where they are read; the table stays in 8 bits.
    """
    if all(node.op != "gather" for node in graph.nodes):
        return graph
    return rewrite_nodes(graph, partial(_dequantise_late, graph.makers()))


def _dequantise_late(makers: Mapping[str, Node], graph: GraphBuilder, node: Node) -> str:
    """Return the gathered rows; an empty name where the node stays."""
    table = constant_of(makers, graph, node.inputs[0]) if node.op == "gather" else None
    if table is None or table.numbers.dtype.name not in _STORED or not table.numbers.size:
        return ""
    indices, shape = node.inputs[1], graph.shape(node.outputs[0])
    known = graph.constant_value(indices) is not None or graph.dtype(indices) not in _INDICES
    numbers = table.numbers.astype(_STORED[table.numbers.dtype.name])
    zero = np.broadcast_to(table.zero.reshape(-1), table.scale.size).astype(numbers.dtype)
    if known or table.scale.dtype != np.float32 or (zero != table.zero.reshape(-1)).any():
        return ""
    along = int(node.attributes.get("axis", 0)) % numbers.ndim
    if table.block and table.axis % numbers.ndim == along:
        return ""  # an index out of data says which block
    zero = zero.reshape(table.scale.shape)
    if not table.block and table.scale.size == 1:
        rows = graph.add(
            "gather", (graph.constant(numbers), indices), shape, numbers.dtype.name, axis=along
        )
        parts = [graph.constant(part.reshape(())) for part in (table.scale, zero)]
        return graph.add("dequantize", (rows, *parts), shape)
    names = (graph.constant(numbers), indices, *map(graph.constant, (table.scale, zero)))
    expr = _element(table, along, len(graph.shape(indices)))
    return graph.add(ELEMENTS, names, shape, expr=expr)


def _element(table: QuantisedConstant, along: int, rank: int) -> Expr:
    """Return ``(number - zero) * scale`` of a gathered element.

    The numbers are input 0, places of ``rank`` axes input 1, scales and zeros inputs 2 and 3.
    """
    shape = table.numbers.shape
    places = Load("1", tuple(axis(along + at) for at in range(rank)))
    index: list[Index] = [axis(at + (rank - 1) * (at > along)) for at in range(len(shape))]
    index[along] = Computed(places, shape[along])
    own = table.axis % len(shape)
    beside = [index[own]]
    if table.block:
        blocks = tuple(at // table.block for at in range(shape[own]))
        beside = [*index]
        beside[own] = Lookup(blocks, axis(own + (rank - 1) * (own > along)))
    number, zero, scale = (
        Load(name, tuple(part)) for name, part in (("0", index), ("3", beside), ("2", beside))
    )
    return apply("mul", apply("sub", apply("real", number), apply("real", zero)), scale)
