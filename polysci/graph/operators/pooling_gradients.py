"""Gradients of pools, gathered: which windows an element is in depends on its place alone.

So no two elements that are written meet, whatever the overlap of windows. A table has these windows
along each axis, as many for every place, with -1 for the tap of one that is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from polysci.graph.graph import AVERAGE_POOL_GRADIENT, MAX_POOL_GRADIENT, Node
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.pooling import over_windows, shares
from polysci.graph.operators.table import Operator
from polysci.graph.operators.windows import Span, spans
from polysci.graph.reference.pooling import pool_gradient
from polysci.loop_ir.expressions import Expr, Index, Load, Lookup, Reduce, apply, axis, combine
from polysci.numerics.arrays import Array


@dataclass(frozen=True, slots=True)
class _Around:
    """By place along an axis of x: windows that it is in, and which tap of each it is."""

    windows: Array
    taps: Array

    @property
    def most(self) -> int:
        """Windows that one place is in."""
        return int(self.windows.shape[1])


def _around(span: Span) -> _Around:
    inside: list[list[tuple[int, int]]] = [[] for _ in range(span.size)]
    for window in range(span.out):
        for tap in range(span.taps):
            place = window * span.stride + tap * span.dilation - span.before
            if 0 <= place < span.size:
                inside[place].append((window, tap))
    most = max(1, *map(len, inside))
    rows = [[*some, *[(0, -1)] * (most - len(some))] for some in inside]
    table = np.array(rows, np.int32).reshape(span.size, most, 2)
    return _Around(table[:, :, 0], table[:, :, 1])


def _gather(build: Builder, node: Node, along: list[_Around], base: str, rows: list[Array],
            term: str) -> tuple[Reduce, list[Load]]:  # fmt: skip
    """A sum over the windows of an element, of its ``term``; and what ``rows`` say of each."""
    index: list[Index] = [axis(0), axis(1)]
    told = list[Load]()
    for at, (around, row) in enumerate(zip(along, rows, strict=True)):
        place = combine({f"i{at + 2}": around.most, f"k{at}": 1})
        index.append(Lookup(tuple(map(int, around.windows.reshape(-1))), place))
        name = build.number(f"{node.outputs[0]}.{base}{at}", row)
        told.append(Load(name, (axis(at + 2), combine({f"k{at}": 1}))))
    over = tuple((f"k{at}", around.most) for at, around in enumerate(along))
    return Reduce("add", over, Load(term, tuple(index))), told


def maximum(build: Builder, node: Node) -> None:
    """dy of the windows of which x is the first of the largest elements."""
    dy, x = node.inputs
    build.check_floats(node, dy, x)
    windows = spans(node, build.shape(x), node.attributes["kernel_shape"], build.shape(dy))
    every = prod(span.taps for span in windows)
    taps = build.fresh(
        f"{node.outputs[0]}.tap", build.shape(dy), "uint8" if every <= 256 else "int32"
    )
    build.define(node, over_windows(windows, "argmax", x), taps)
    along = [_around(span) for span in windows]
    steps = [prod(span.taps for span in windows[at + 1 :]) for at in range(len(windows))]
    rows = [  # so far below 0 where there is no window that no sum of them is a tap
        np.where(around.taps < 0, -every, around.taps * step).astype(np.int32)
        for around, step in zip(along, steps, strict=True)
    ]
    gathered, told = _gather(build, node, along, "place", rows, dy)
    own: Expr = told[0]
    for row in told[1:]:
        own = apply("add", own, row)
    assert isinstance(gathered.body, Load)
    chosen = Load(taps, gathered.body.index)
    body = apply("select", apply("equal", chosen, own), gathered.body, 0)
    build.define(node, Reduce("add", gathered.over, body))


def average(build: Builder, node: Node) -> None:
    """The share of dy that x has in each of its windows."""
    (dy,), shape = node.inputs, build.shape(node.outputs[0])
    build.check_floats(node, dy)
    windows = spans(node, shape, node.attributes["kernel_shape"], build.shape(dy))
    along = [_around(span) for span in windows]
    rows = [
        np.where(around.taps < 0, 0, share[around.windows]).astype(build.dtype(dy))
        for around, share in zip(along, shares(node, windows), strict=True)
    ]
    gathered, told = _gather(build, node, along, "share", rows, dy)
    factor: Expr = told[0]
    for row in told[1:]:
        factor = apply("mul", factor, row)
    body = apply("mul", gathered.body, factor)
    if any((around.taps < 0).any() for around in along):  # where dy may not be finite
        body = apply("select", apply("greater", factor, 0), body, 0)
    build.define(node, Reduce("add", gathered.over, body))


ROWS = (
    Operator(MAX_POOL_GRADIENT, "", maximum, reference=pool_gradient),
    Operator(AVERAGE_POOL_GRADIENT, "", average, reference=pool_gradient),
)  # fmt: skip
