"""Narrower weights of f32, and inputs of 8 bits beside narrow ones: asked for, since both round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np

from polysci.errors import SpecError
from polysci.graph.builder import GraphBuilder, rewrite_nodes
from polysci.graph.graph import NARROW_MATMUL, Graph, Node, rebuild
from polysci.graph.passes.narrow_weights import operands_of
from polysci.numerics.arrays import Array
from polysci.numerics.blocks import decode_blocks, make_blocks
from polysci.numerics.dtypes import BLOCK_TYPES, DType, from_bf16, to_bf16
from polysci.text.names import suggest

# Name -> the type that it stands for.
ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {"int8": "s8x32", "int4": "s4x32", "int8a8": "s8a8x32", "int4a8": "s4a8x32"}
)
INPUTS_ONLY: Final = "a8"  # weights stay as they are, and the inputs beside narrow ones are rounded
PLAIN: Final = ("f32", "bf16", INPUTS_ONLY)


@dataclass(frozen=True, slots=True)
class RoundedWeights:
    """The weights of a node, and what they lose: roots of sums of squares, off over all.

    Without ``loss`` they stayed as they were, as no whole number of blocks holds a column.
    """

    node: str
    loss: float | None


def check_weights(name: str) -> str:
    """Return the type of weights of a name. Raises SpecError listing those that exist."""
    chosen = ALIASES.get(name, name)
    if chosen not in BLOCK_TYPES and chosen not in PLAIN:
        known = [*PLAIN, *ALIASES, *BLOCK_TYPES]
        raise SpecError(
            f"weights {name!r:.100}: expected f32, bf16, int8 (s8x32), int4 (s4x32), or s4, u4, s8 "
            "or u8 in blocks of 16 to 256, as u4x32; int8a8, int4a8, u4a8x32 and the like beside "
            f"inputs of 8 bits, a8 where weights are narrow already{suggest(name, known)}"
        )
    return chosen


def rounding_bound(weights: str) -> float:
    """Return the error over the largest number of an output above which rounding is no excuse."""
    kind = check_weights(weights)
    return 0.0 if kind == "f32" else 0.5 if kind[1:2] == "4" or kind == INPUTS_ONLY else 0.1


def round_weights(graph: Graph, weights: str) -> tuple[Graph, tuple[RoundedWeights, ...]]:
    """Return the graph with constant weights of products in a type, and what each loses.

    A type of inputs of 8 bits is that of products whose weights are narrow already, too; ``a8`` is
    for those alone. Raises SpecError for a type that there is not.
    """
    chosen, rounded = check_weights(weights), list[RoundedWeights]()
    if chosen == "f32":
        return graph, ()
    if INPUTS_ONLY in chosen:
        graph = replace(graph, nodes=tuple(map(_round_inputs, graph.nodes)))
    if chosen != INPUTS_ONLY:
        graph = rewrite_nodes(graph, partial(_replace, chosen, rounded))
    return rebuild(graph, graph.nodes), tuple(rounded)


def round_products(graph: Graph, chosen: Mapping[str, str]) -> Graph:
    """Return the graph with products, by their results, in types; others stay as they are."""

    def rule(growing: GraphBuilder, node: Node) -> str:
        weights = chosen.get(node.outputs[0])
        return add_rounded(growing, node, weights) if weights else ""

    graph = rewrite_nodes(graph, rule)
    return rebuild(graph, graph.nodes)


def add_rounded(graph: GraphBuilder, node: Node, weights: str) -> str:
    """Add a product with its constant weights in a type, or with ``a8`` beside narrow weights.

    Return its result; an empty name where the type is not for it. Raises SpecError for a type that
    there is not.
    """
    chosen = check_weights(weights)
    if chosen != INPUTS_ONLY:
        return _replace(chosen, [], graph, node)
    rounded = _round_inputs(node)
    if rounded is node:
        return ""
    return graph.add(NARROW_MATMUL, node.inputs, graph.shape(node.outputs[0]), **rounded.attributes)


def rounds_inputs(node: Node) -> bool:
    """Return whether a product rounds its inputs to 8 bits."""
    kind = _blocks_of(node)
    return kind is not None and kind.rounds_x


def _blocks_of(node: Node) -> DType | None:
    """Return the type of the weights of a product in blocks; None of all other nodes."""
    weights = node.attributes["weights"] if node.op == NARROW_MATMUL else ""
    return BLOCK_TYPES.get(weights)


def _round_inputs(node: Node) -> Node:
    kind = _blocks_of(node)
    if kind is None or kind.rounds_x:
        return node
    weights = kind.name.replace("x", f"{INPUTS_ONLY}x")
    return replace(node, attributes=MappingProxyType({**node.attributes, "weights": weights}))


def _replace(
    weights: str, rounded: list[RoundedWeights], graph: GraphBuilder, node: Node
) -> str:  # fmt: skip
    operands = operands_of(graph, node)
    value = graph.constant_value(node.inputs[1]) if operands else None
    if operands is None or value is None or value.ndim != 2 or value.dtype != np.float32:
        return ""
    turned = bool(node.attributes.get("transpose_b"))
    stored = _stored(weights, np.ascontiguousarray(value if turned else value.T))
    if stored is None:
        rounded.append(RoundedWeights(str(node), None))
        return ""
    array, loss = stored
    rounded.append(RoundedWeights(str(node), loss))
    x, bias = operands
    names = (x, graph.constant(array), *[bias] * bool(bias))
    return graph.add(NARROW_MATMUL, names, graph.shape(node.outputs[0]), weights=weights)


def _stored(weights: str, values: Array) -> tuple[Array, float] | None:
    """Return rows (N, K) as they are stored and what is lost; None where K is no blocks."""
    if weights == "bf16":
        bits = to_bf16(values)
        return bits, _loss(from_bf16(bits), values)
    kind = BLOCK_TYPES[weights]
    if values.shape[1] % kind.block or not values.size or not np.isfinite(values).all():
        return None
    blocks = _encode(kind, values)
    array = blocks.view(np.uint8).reshape(len(values), -1)
    return array, _loss(decode_blocks(blocks), values)


def _loss(narrow: Array, values: Array) -> float:
    size = float(np.linalg.norm(values))
    return float(np.linalg.norm(narrow - values)) / size if size else 0.0


def _encode(kind: DType, values: Array) -> Array:
    """Return the blocks of rows; of signed ones the largest value is the lowest number."""
    names = kind.numpy.names or ()
    bits = 4 if "nibbles" in names else 8
    grouped = values.reshape(len(values), -1, kind.block).astype(np.float64)
    if "zero" in names:
        low, most = grouped.min(-1), 2**bits - 1
        step = (grouped.max(-1) - low) / most
        scale = np.where(step > 0, step, 1).astype(np.float32)
        zero = (-low / scale).astype(np.float32)
        numbers = np.rint(grouped / scale[..., None] + zero[..., None]).clip(0, most)
        return make_blocks(kind.numpy, numbers.astype(np.int64), scale, zero)
    place = np.abs(grouped).argmax(-1)[..., None]
    least = -(2 ** (bits - 1))
    step = np.take_along_axis(grouped, place, -1)[..., 0] / least
    scale = np.where(step == 0, 1, step).astype(np.float32)
    numbers = np.rint(grouped / scale[..., None]).clip(least, -least - 1)
    return make_blocks(kind.numpy, numbers.astype(np.int64), scale)
