"""Operators that only move elements: other names for them where that is possible."""

from __future__ import annotations

import numpy as np

from polysci.graph import shapes
from polysci.graph.gradients import shape_ops as gradients
from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder, attribute_axes
from polysci.graph.operators.table import Operator
from polysci.loop_ir.expressions import (
    Expr,
    Guard,
    Index,
    Load,
    Lookup,
    Number,
    Where,
    axis,
    combine,
)
from polysci.program.stages import ConcatStage, ViewStage

_MODES = ("constant", "edge", "reflect", "wrap")


def reshape(build: Builder, node: Node) -> None:
    build.stages.append(ViewStage(str(node), node.outputs[0], node.inputs[0]))


def transpose(build: Builder, node: Node) -> None:
    rank = len(build.shape(node.inputs[0]))
    order = node.attributes.get("perm") or list(range(rank))[::-1]
    index = [axis(0)] * rank
    for at, number in enumerate(order):
        index[number] = axis(at)
    build.stages.append(ViewStage(str(node), node.outputs[0], node.inputs[0], tuple(index)))


def concat(build: Builder, node: Node) -> None:
    (along,) = attribute_axes([node.attributes.get("axis", 1)], len(build.shape(node.outputs[0])))
    parts = tuple(name for name in node.inputs if build.shape(name)[along])
    build.stages.append(ConcatStage(str(node), node.outputs[0], parts, along))


def split(build: Builder, node: Node) -> None:
    """Sizes are listed, or those of the outputs; one that is left out has what the others leave."""
    x = node.inputs[0]
    rank = len(build.shape(x))
    (along,) = attribute_axes([node.attributes.get("axis", 0)], rank)
    listed = _list(build, node, 1, "split")
    sizes = [build.shape(name)[along] if name else 0 for name in node.outputs]
    left = build.shape(x)[along] - sum(sizes)
    if left and not listed and node.outputs.count("") > 1:
        build.refuse("outputs without a name and a size")
    first = 0
    for at, name in enumerate(node.outputs):
        if name:
            index = [axis(number) for number in range(rank)]
            index[along] = combine({f"i{along}": 1}, first)
            build.stages.append(ViewStage(str(node), name, x, tuple(index)))
        first += sizes[at] if name else listed[at] if listed else left


def slices(build: Builder, node: Node) -> None:
    """Starts and ends are attributes, or inputs since opset 10; they may lie outside."""
    shape = build.shape(node.inputs[0])
    rank = len(shape)
    starts = _list(build, node, 1, "starts")
    ends = _list(build, node, 2, "ends")
    axes = attribute_axes(_list(build, node, 3, "axes") or range(len(starts)), rank)
    steps = _list(build, node, 4, "steps") or [1] * len(starts)
    index = [axis(at) for at in range(rank)]
    for start, end, at, step in zip(starts, ends, axes, steps, strict=True):
        first = range(shape[at])[slice(start, end, step)]
        index[at] = combine({f"i{at}": step}, first.start if len(first) else 0)
    build.stages.append(ViewStage(str(node), node.outputs[0], node.inputs[0], tuple(index)))


def _list(build: Builder, node: Node, position: int, name: str) -> list[int]:
    if name in node.attributes:
        return [int(number) for number in node.attributes[name]]
    value = build.known(node, position, name)
    return [] if value is None else [int(number) for number in value.reshape(-1)]


def pad(build: Builder, node: Node) -> None:
    """By a constant, or by elements of x: at the edge, mirrored, or around the corner."""
    x, mode = node.inputs[0], node.attributes.get("mode", "constant")
    build.check_numbers(node, x)
    if mode not in _MODES:
        build.refuse(f"mode {mode}")
    shape, pads = build.shape(x), _list(build, node, 1, "pads")
    axes = attribute_axes(_list(build, node, 3, "axes") or range(len(shape)), len(shape))
    before, after = [0] * len(shape), [0] * len(shape)
    for at, number in enumerate(axes):
        before[number], after[number] = pads[at], pads[len(axes) + at]
    places = [combine({f"i{at}": 1}, -size) for at, size in enumerate(before)]
    if mode != "constant":
        index: list[Index] = list(places)
        for at, size in enumerate(shape):
            left = size + min(0, before[at]) + min(0, after[at])
            if left <= 0 and (before[at] > 0 or after[at] > 0):
                build.refuse(f"axis {at} has no elements to repeat")
            if before[at] or after[at]:
                wide = (max(0, before[at]), max(0, after[at]))
                cropped = np.arange(size)[max(0, -before[at]) : size - max(0, -after[at])]
                sources = np.pad(cropped, wide, mode)
                index[at] = Lookup(tuple(map(int, sources)), axis(at))
        build.define(node, Load(x, tuple(index)))
        return
    value = node.attributes.get("value", 0.0)
    other: Expr = Number(float(value))
    if node.input(2) and build.values[node.input(2)].size:
        other = build.load(node.input(2), node.outputs[0])
    guards = tuple(
        Guard(place, shape[at])
        for at, place in enumerate(places)
        if before[at] > 0 or after[at] > 0
    )
    inside = Load(x, tuple(places))
    build.define(node, Where(guards, inside, other) if guards else inside)


ROWS = (
    Operator("reshape", "Reshape", reshape, shapes.keep_count, gradients.reshape, dims="reshaped"),
    Operator("transpose", "Transpose", transpose, shapes.check_order, gradients.transpose,
             dims="transposed"),
    Operator("concat", "Concat", concat, gradient=gradients.concat, dims="joined"),
    Operator("split", "Split", split, gradient=gradients.split),
    Operator("slice", "Slice", slices, shapes.cut, gradients.slices, dims="sliced"),
    Operator("pad", "Pad", pad, gradient=gradients.pad),
    # Without stages: known while a model is read, or Reshape after simplification
    Operator("flatten", "Flatten", None, shapes.check_axis, gradients.reshape, dims="reshaped"),
    Operator("squeeze", "Squeeze", gradient=gradients.reshape, dims="reshaped"),
    Operator("unsqueeze", "Unsqueeze", gradient=gradients.reshape, dims="reshaped"),
    Operator("constant", "Constant"),
    Operator("constant_of_shape", "ConstantOfShape"),
    Operator("shape", "Shape"),
    Operator("size", "Size"),
    Operator("range", "Range"),
    Operator("unique", "Unique"),
    Operator("mel_weight_matrix", "MelWeightMatrix"),
)  # fmt: skip
