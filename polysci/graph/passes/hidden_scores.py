"""The pass that computes no scores of an attention which its mask hides, as those behind a token.

Queries are divided into blocks, each with the keys that some of its queries may see. A causal mask
so leaves a little more than half of the work (Dao et al., 2022, skip blocks of keys alike).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import ceil, prod, sqrt

import numpy as np

from polysci.graph.builder import GraphBuilder, rewrite_nodes
from polysci.graph.graph import AFFINE, Graph, Node, rebuild
from polysci.graph.passes.fixed_shapes import RESHAPES
from polysci.graph.passes.readers import GraphReaders
from polysci.numerics.arrays import Array
from polysci.numerics.scalar_functions import FUNCTIONS

# A block has the root of so many times all queries, 64 of 128 and 256 of 2048: more blocks leave
# little more out, and each has code of its own.
QUERIES = 32
STEP = 64  # blocks and their keys begin at multiples of it
WORTH = 0.85  # of the scores, at most, are computed in blocks
NEVER = -1e30  # a constant mask hides what it moves below this, as the least float does

Span = tuple[int, int]  # the first place along an axis, and the place behind the last
Spans = Mapping[int, Span]  # by the axis


def skip_hidden_scores(graph: Graph) -> Graph:
    """Divide ``softmax(mask(q @ k)) @ v`` into blocks where constants tell what the mask hides."""
    if all(node.op != "softmax" for node in graph.nodes):
        return graph
    masks = _Masks(graph, graph.makers(), graph.readers())
    changed = rewrite_nodes(graph, partial(_replace, masks))
    return rebuild(changed, changed.nodes)


@dataclass(frozen=True, slots=True)
class _Block:
    """Queries, and the keys that some of them may see."""

    rows: Span
    keys: Span


@dataclass(frozen=True, slots=True)
class _Attention:
    """A softmax of scores that a product reads.

    ``guard`` chooses 0 where the softmax is no number, if there is such a choice. ``chain`` are the
    tensors from the scores, which are a product, to the input of the softmax.
    """

    softmax: Node
    guard: Node | None
    chain: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Masks(GraphReaders):
    """Find attention, and the scores that constants hide."""

    def attention(self, product: Node) -> _Attention | None:
        """Return the attention that ends in a product."""
        node = self.maker(product.inputs[0]) if self._is_of_matrices(product) else None
        guard = node if node and self.is_guard(node) else None
        if guard:
            node = self.maker(guard.inputs[2], 2)
        if node is None or node.op != "softmax":
            return None
        rank = len(self.graph.tensors[node.outputs[0]].shape)
        rows = rank > 1 and node.attributes.get("axis", -1) in (-1, rank - 1)
        chain = self._chain(node.inputs[0]) if rows else frozenset[str]()
        return _Attention(node, guard, chain) if chain else None

    def _is_of_matrices(self, node: Node) -> bool:
        """Return whether a node multiplies matrices, or stacks of them."""
        ranks = [len(self.graph.tensors[name].shape) for name in node.inputs if name]
        return node.op == "matmul" and min(ranks) > 1

    def _chain(self, name: str) -> frozenset[str]:
        """Return the tensors from scores to this one; none where there is no product, or two."""
        node = self.maker(name)
        if node and self._is_of_matrices(node):
            return frozenset({name})
        if node is None or node.op not in (AFFINE, *FUNCTIONS):
            return frozenset()
        shape = self.graph.tensors[name].shape
        parts = [self._chain(it) for it in node.inputs if self.graph.tensors[it].shape == shape]
        found = [part for part in parts if part]
        return found[0] | {name} if len(found) == 1 else frozenset()

    def blocks(self, attention: _Attention) -> list[_Block]:
        """Return the blocks of queries; none where they would leave out too little."""
        (name,) = attention.softmax.inputs
        *_, rows, keys = self.graph.tensors[name].shape
        size = ceil(sqrt(QUERIES * rows) / STEP) * STEP
        makers = [self.makers[it] for it in attention.chain]
        read = {it for maker in makers if maker.op != "matmul" for it in maker.inputs}
        fixed = read <= {*self.graph.constants, *attention.chain}  # no input of a run masks more
        hidden = self._hidden(name, NEVER if fixed else -np.inf) if rows > size else None
        if hidden is None:
            return []
        flat = hidden.reshape(-1, *hidden.shape[-2:]).all(0) if hidden.ndim > 1 else hidden
        seen = ~np.broadcast_to(flat, (rows, keys))
        if not seen.any(1).all():
            return []
        starts = range(0, rows, size)
        blocks = [_block(seen, (start, min(start + size, rows))) for start in starts]
        left = sum((it.rows[1] - it.rows[0]) * (it.keys[1] - it.keys[0]) for it in blocks)
        return blocks if left <= WORTH * rows * keys else []

    def _hidden(self, name: str, least: float) -> Array | None:
        """Return where scores are ``least`` or below whatever is multiplied; None: nowhere."""
        node, inputs = self.makers.get(name), self.graph.constants
        if name in inputs:
            value = inputs[name]
            return np.asarray(value <= least) if value.dtype.kind == "f" else None
        match node:
            case Node("add" | "expand" as op, parts):
                return _either([self._hidden(it, least) for it in parts[: 1 + (op == "add")]])
            case Node("select", (where, there, elsewhere)):
                first, second = (self._hidden(it, least) for it in (there, elsewhere))
                known = [_both([self._known(where, truth), part])
                         for truth, part in ((True, first), (False, second))]  # fmt: skip
                return _either([*known, _both([first, second])])
        return None

    def _known(self, name: str, truth: bool) -> Array | None:
        """Return where a tensor has a truth, whatever the inputs are; None: nowhere."""
        node = self.makers.get(name)
        if name in self.graph.constants:
            return np.asarray(self.graph.constants[name].astype(bool) == truth)
        match node:
            case Node("not", (part,)):
                return self._known(part, not truth)
            case Node("expand", (part, *_)):
                return self._known(part, truth)
            case Node("and" | "or" as op, parts):
                known = [self._known(it, truth) for it in parts]
                return _both(known) if truth == (op == "and") else _either(known)
        return None


def _both(parts: Sequence[Array | None]) -> Array | None:
    """Return where all parts are true; None: nowhere."""
    known = [part for part in parts if part is not None]
    return reduce(np.logical_and, known) if len(known) == len(parts) else None


def _either(parts: Sequence[Array | None]) -> Array | None:
    """Return where one of the parts is true; None: nowhere."""
    known = [part for part in parts if part is not None]
    return reduce(np.logical_or, known) if known else None


def _block(seen: Array, rows: Span) -> _Block:
    """Return a block of queries with the keys from the first to the last that one of them sees."""
    places = np.flatnonzero(seen[slice(*rows)].any(0))
    first, last = int(places[0]) // STEP * STEP, -(-int(places[-1] + 1) // STEP) * STEP
    return _Block(rows, (first, min(last, seen.shape[1])))


def _replace(masks: _Masks, growing: GraphBuilder, node: Node) -> str:
    """Add an attention in blocks; an empty name where the node does not end one."""
    attention = masks.attention(node)
    blocks = masks.blocks(attention) if attention else []
    if not attention or not blocks:
        return ""
    parts = [_BlockNodes(masks, attention, growing, block).add(node) for block in blocks]
    shape, dtype = growing.shape(node.outputs[0]), growing.dtype(node.outputs[0])
    return growing.add("concat", parts, shape, dtype, axis=len(shape) - 2)


@dataclass(frozen=True, slots=True)
class _BlockNodes:
    """A block of queries of an attention, whose nodes are added to a graph."""

    masks: _Masks
    attention: _Attention
    growing: GraphBuilder
    block: _Block

    def add(self, product: Node) -> str:
        """Return the result of the block."""
        softmax, guard, growing = self.attention.softmax, self.attention.guard, self.growing
        scores = self.scores(softmax.inputs[0])
        shape, dtype = growing.shape(scores), growing.dtype(scores)
        shares = growing.add("softmax", [scores], shape, dtype, axis=len(shape) - 1)
        if guard:
            test = growing.add("isnan", [shares], shape, "bool")
            shares = growing.add("select", [test, guard.inputs[1], shares], shape, dtype)
        values = product.inputs[1]
        values = self.slice(values, {len(growing.shape(values)) - 2: self.block.keys})
        out, rows = growing.shape(product.outputs[0]), shape[-2]
        return growing.add("matmul", [shares, values], (*out[:-2], rows, out[-1]), dtype)

    def scores(self, name: str) -> str:
        """Return the block of the scores, or of what is computed of them or masks them."""
        growing, shape = self.growing, self.growing.shape(name)
        rank, node = len(shape), self.masks.makers.get(name)
        if name not in self.attention.chain or node is None:
            spans = {rank - 2: self.block.rows, rank - 1: self.block.keys}
            return self.slice(name, {at: span for at, span in spans.items() if at >= 0})
        own = (*shape[:-2], *(last - first for first, last in (self.block.rows, self.block.keys)))
        match node.op:
            case "matmul":
                left, right = node.inputs
                along_rows, along_keys = (len(growing.shape(it)) for it in (left, right))
                inputs = [self.slice(left, {along_rows - 2: self.block.rows}),
                          self.slice(right, {along_keys - 1: self.block.keys})]  # fmt: skip
            case op if op == AFFINE:  # a number a place along the axis 1
                spans = {3: {0: self.block.rows}, 2: {0: self.block.keys}}.get(rank, {})
                inputs = [self.scores(node.inputs[0])]
                inputs += [self.slice(it, spans) for it in node.inputs[1:]]
            case _:
                inputs = [self.scores(it) for it in node.inputs]
        return growing.add(node.op, inputs, own, growing.dtype(name), **node.attributes)

    def slice(self, name: str, spans: Spans) -> str:
        """Return a part of a tensor, taken before what moves its elements."""
        growing, shape = self.growing, self.growing.shape(name)
        spans = {at: span for at, span in spans.items() if span != (0, shape[at]) and shape[at] > 1}
        if not spans:
            return name
        places = [spans.get(at, (0, size)) for at, size in enumerate(shape)]
        own = [last - first for first, last in places]
        if name in growing.constants:
            return growing.constant(growing.constants[name][tuple(slice(*it) for it in places)])
        node = self.masks.makers.get(name)
        below = _before(node, spans, growing) if node else None
        if node and below is not None:
            part = self.slice(node.inputs[0], below)
            match node.op:
                case "transpose":
                    return growing.transpose(part, node.attributes["perm"])
                case "expand":
                    return growing.expand(part, own)
            return growing.reshape(part, own)
        lists = [[spans[at][0] for at in spans], [spans[at][1] for at in spans], [*spans]]
        limits = [growing.constant(np.array(it, np.int64)) for it in lists]
        return growing.add("slice", (name, *limits), own, growing.dtype(name))


def _before(node: Node, spans: Spans, growing: GraphBuilder) -> Spans | None:
    """Return the same part of what a node moves; None where it is none, or moves nothing."""
    if node.op == "transpose":
        return {node.attributes["perm"][at]: span for at, span in spans.items()}
    if node.op not in ("expand", *RESHAPES):
        return None
    source, shape = (growing.shape(name) for name in (node.inputs[0], node.outputs[0]))
    found = dict[int, Span]()
    for at, span in spans.items():
        if node.op == "expand":
            axis = at - len(shape) + len(source)
            alike = axis >= 0 and source[axis] == shape[at]
        else:
            before = prod(shape[:at])
            sizes = [prod(source[:axis]) for axis in range(len(source))]
            axis = next(
                (it for it, size in enumerate(sizes) if size == before and source[it] == shape[at]),
                -1,
            )  # fmt: skip
            alike = axis >= 0
        if not alike:
            return None
        found[axis] = span
    return found
