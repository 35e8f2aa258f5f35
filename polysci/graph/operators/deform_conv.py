"""Convolutions whose taps are moved by data: pixels read between others, then a product."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.products import multiply
from polysci.graph.operators.sampling import SampledAxis, taps_of
from polysci.graph.operators.table import Operator
from polysci.loop_ir.expressions import (
    Computed,
    Expr,
    Index,
    Load,
    Position,
    Reduce,
    apply,
    axis,
    combine,
    constant,
)
from polysci.polyhedral.affine import Affine
from polysci.program.stages import ConcatStage, ViewStage


@dataclass(frozen=True, slots=True)
class DeformedWindow:
    """The taps, the pixels of y, and how they lie in x; ``groups`` of channels move together."""

    taps: tuple[int, ...]
    out: tuple[int, ...]
    groups: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.taps)


def deform_conv(build: Builder, node: Node) -> None:
    """What every tap of every pixel reads, as columns; their product with the weights."""
    x, w, offset, y = *node.inputs[:3], node.outputs[0]
    build.check_floats(node, x, w, offset)
    window, shape = _window(build, node), build.shape(x)
    groups = int(node.attributes.get("group", 1))
    filters, depth = build.shape(w)[0], build.shape(w)[1] * prod(window.taps)
    if shape[1] != build.shape(w)[1] * groups or filters % groups:
        build.refuse(f"weights {list(build.shape(w))} and {groups} groups for x {list(shape)}")
    if not build.values[x].size or not build.values[y].size:
        build.refuse("no elements")
    pixels = prod(window.out)
    columns = _view(build, node, _columns(build, node, window), (shape[0], groups, depth, pixels))
    parts = list[str]()
    for group in range(groups):
        index = (axis(0), constant(group), axis(2), axis(1))
        rows = _view(build, node, columns, (shape[0], pixels, depth), index)
        out = build.fresh(f"{y}.rows", (shape[0], pixels, filters // groups), build.dtype(x))
        multiply(build, node, rows, _weights(build, node, group, filters // groups, depth), out)
        turned = (shape[0], filters // groups, pixels)
        parts.append(_view(build, node, out, turned, (axis(0), axis(2), axis(1))))
    whole = parts[0]
    if groups > 1:
        whole = build.fresh(f"{y}.parts", (shape[0], filters, pixels), build.dtype(x))
        build.stages.append(ConcatStage(str(node), whole, tuple(parts), 1))
    image = _view(build, node, whole, build.shape(y))
    bias = [build.along(node.inputs[3], 1)] if node.input(3) else []
    value: Expr = Load(image, tuple(map(axis, range(len(shape)))))
    build.define(node, apply("add", value, *bias) if bias else value)


def _window(build: Builder, node: Node) -> DeformedWindow:
    words, w, offset = node.attributes, *(build.shape(name) for name in node.inputs[1:3])
    taps, rank = w[2:], len(w) - 2
    window = DeformedWindow(
        taps, build.shape(node.outputs[0])[2:], int(words.get("offset_group", 1)),
        strides=tuple(words.get("strides") or [1] * rank),
        dilations=tuple(words.get("dilations") or [1] * rank),
        pads=tuple(words.get("pads") or [0] * 2 * rank),
    )  # fmt: skip
    x = build.shape(node.inputs[0])
    wanted = (x[0], window.groups * prod(taps) * rank, *window.out)
    if offset != wanted or x[1] % window.groups or tuple(words.get("kernel_shape", taps)) != taps:
        build.refuse(f"offset {list(offset)}: expected {list(wanted)} for weights {list(w)}")
    mask = build.shape(node.inputs[4]) if node.input(4) else ()
    if mask and mask != (x[0], window.groups * prod(taps), *window.out):
        build.refuse(f"mask {list(mask)} for offset {list(offset)}")
    return window


def _columns(build: Builder, node: Node, window: DeformedWindow) -> str:
    """Tensor [image, group, channel of it, taps.., pixels..] of what is read."""
    x, rank = node.inputs[0], window.rank
    shape, dtype = build.shape(x), build.dtype(x)
    grouped = (shape[0], window.groups, shape[1] // window.groups)
    points = (shape[0], window.groups, *window.taps, *window.out)
    source = _view(build, node, x, (*grouped, *shape[2:]))
    offsets = (*points[: 2 + rank], rank, *window.out)
    moves = _view(build, node, node.inputs[2], offsets)
    own = (axis(0), axis(1), *(axis(3 + at) for at in range(2 * rank)))
    index: list[Index] = [axis(0), axis(1), axis(2)]
    value: Expr | None = None
    for at in range(rank):
        moved = Load(moves, (
            *(axis(number) for number in range(2 + rank)), constant(at),
            *(axis(2 + rank + number) for number in range(rank)),
        ))  # fmt: skip
        form = {f"i{2 + rank + at}": window.strides[at], f"i{2 + at}": window.dilations[at]}
        place = apply("add", moved, Position(combine(form, -window.pads[at])))
        places = build.define(node, place, build.fresh(f"{x}.place{at}", points, dtype))
        sampled = SampledAxis(shape[2 + at], "linear", "zeros", aligned=True)
        subscripts, weights = taps_of(build, node, sampled, places)
        tap = (Affine(((f"t{at}", 1),)), *own)
        index.append(Computed(Load(subscripts, tap), shape[2 + at]))
        share = Load(weights, tap)
        value = share if value is None else apply("mul", value, share)
    assert value is not None
    over = tuple((f"t{at}", 2) for at in range(rank))
    total: Expr = Reduce("add", over, apply("mul", Load(source, tuple(index)), value))
    if node.input(4):
        total = apply("mul", total, Load(_view(build, node, node.inputs[4], points), own))
    made = build.fresh(f"{x}.columns", (*grouped, *window.taps, *window.out), dtype)
    return build.define(node, total, made)


def _weights(build: Builder, node: Node, group: int, filters: int, depth: int) -> str:
    """The weights of a group as columns, one a filter."""
    w, first = node.inputs[1], group * filters
    known = build.constant(w)
    if known is not None:
        matrix = known[first : first + filters].reshape(filters, depth).T
        return build.number(f"{w}.columns", np.ascontiguousarray(matrix))
    flat = _view(build, node, w, (build.shape(w)[0], depth))
    return _view(build, node, flat, (depth, filters), (combine({"i1": 1}, first), axis(0)))


def _view(
    build: Builder, node: Node, source: str, shape: tuple[int, ...],
    index: tuple[Affine, ...] | None = None,
) -> str:  # fmt: skip
    """Another name for elements of a tensor."""
    made = build.fresh(f"{source}.view", shape, build.dtype(source))
    build.stages.append(ViewStage(str(node), made, source, index))
    return made


ROWS = (
    Operator("deform_conv", "DeformConv", deform_conv),
)  # fmt: skip
