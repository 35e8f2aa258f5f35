"""Transposed convolutions: gradients of the inputs of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from polysci.graph.gradients import convolution as gradients
from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.convolution import AXES, layer_problem
from polysci.graph.operators.table import Operator
from polysci.graph.operators.windows import Span, auto_pad_of
from polysci.graph.reference import convolution as reference
from polysci.loop_ir.expressions import (
    Expr,
    Index,
    Load,
    Lookup,
    Reduce,
    apply,
    axis,
    combine,
)
from polysci.ops import in_direction
from polysci.polyhedral.affine import Affine
from polysci.program.stages import LayerStage, Window

MOST_CLASSES = 256  # of pixels, by their residues: each has code of its own


def transposed_convolution(build: Builder, node: Node) -> None:
    """ConvTranspose: the gradient of the input of a convolution from y to x."""
    x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
    build.check_floats(node, x, w)
    groups = int(node.attributes.get("group", 1))
    windows = _upwards(build, node)
    shape, taps = build.shape(w), node.attributes.get("kernel_shape")
    if build.shape(x)[1] != shape[0] or groups < 1 or shape[0] % groups:
        build.refuse(f"weights {list(shape)} and {groups} groups for x {list(build.shape(x))}")
    if taps and tuple(taps) != shape[2:]:
        build.refuse(f"weights {list(shape)} and kernel_shape {list(taps)}")
    if node.input(2) and build.shape(node.input(2)) != (shape[1] * groups,):
        build.refuse(f"bias {list(build.shape(node.input(2)))} for {shape[1] * groups} channels")
    empty = not all(build.values[name].size for name in (x, w, y))
    many = prod(min(window.stride, window.out) for window in windows) > MOST_CLASSES
    odd = many or len(windows) > 3 or build.dtype(x) != "float32"
    if empty or odd:
        _scattered(build, node, windows, groups)
        return
    axes = AXES[len(windows)]
    forward = layer_problem(build, y, axes, shape[0], _downwards(windows), groups, "f32")
    build.stages.append(LayerStage(
        str(node), in_direction(forward, "bwd_d"), Window(x, axes), Window(y, axes), w,
        node.input(2),
    ))  # fmt: skip


def _downwards(windows: Sequence[Span]) -> list[Span]:
    """The windows of the convolution from y to x that a transposed one is the transpose of."""
    return [replace(window, size=window.out, out=window.size) for window in windows]


def _upwards(build: Builder, node: Node) -> tuple[Span, ...]:
    """The windows of a transposed convolution; ``before`` is what is cut off the output."""
    shape, out = build.shape(node.inputs[0])[2:], build.shape(node.outputs[0])[2:]
    taps = build.shape(node.inputs[1])[2:]
    axes = len(taps)
    strides = node.attributes.get("strides") or [1] * axes
    dilations = node.attributes.get("dilations") or [1] * axes
    pads = node.attributes.get("pads") or [0] * 2 * axes
    extra = node.attributes.get("output_padding") or [0] * axes
    auto = auto_pad_of(node)
    if len(out) != axes:  # what shape inference gives for a shape that it does not accept
        asked = list(node.attributes.get("output_shape", ()))
        build.refuse(f"output_shape {asked}: expected {axes} sizes, none below x's {list(shape)}")
    windows = []
    for at in range(axes):
        before = pads[at]
        if auto in ("SAME_UPPER", "SAME_LOWER") or node.attributes.get("output_shape"):
            reach = (taps[at] - 1) * dilations[at] + 1
            total = max(0, strides[at] * (shape[at] - 1) + extra[at] + reach - out[at])
            before = total // 2 if auto == "SAME_UPPER" else total - total // 2
        windows.append(Span(shape[at], taps[at], strides[at], dilations[at], before, 0, out[at]))
    return tuple(windows)


def _scattered(build: Builder, node: Node, windows: Sequence[Span], groups: int) -> None:
    """Any transposed convolution, as it is written: tables say which place a tap comes from."""
    x, w = node.inputs[:2]
    channels, filters = build.shape(w)[:2]
    own = channels // groups
    expr_index: list[Index] = []
    shares: list[Expr] = []
    for at, window in enumerate(windows):
        reach = np.arange(window.out)[:, None] + window.before
        places = reach - np.arange(window.taps) * window.dilation
        real = (places % window.stride == 0) & (places >= 0)
        real &= places // window.stride < window.size
        table = np.where(real, places // window.stride, 0)
        spot = combine({f"i{at + 2}": window.taps, f"r{at}": 1})
        expr_index.append(Lookup(tuple(int(index) for index in table.reshape(-1)), spot))
        name = build.number(f"{node.outputs[0]}.real{at}", real.reshape(-1).astype(build.dtype(x)))
        shares.append(Load(name, (spot,)))
    table_c = tuple(k // filters * own + c for k in range(groups * filters) for c in range(own))
    channel = Lookup(table_c, combine({"i1": own, "c": 1}))
    inner = Lookup(tuple(k % filters for k in range(groups * filters)), axis(1))
    taps = [Affine(((f"r{at}", 1),)) for at in range(len(windows))]
    value: Expr = apply(
        "mul", Load(x, (axis(0), channel, *expr_index)), Load(w, (channel, inner, *taps))
    )
    for share in shares:
        value = apply("mul", value, share)
    over = (("c", own), *((f"r{at}", window.taps) for at, window in enumerate(windows)))
    expr: Expr = Reduce("add", over, value)
    if node.input(2):
        expr = apply("add", expr, build.along(node.input(2), 1))
    build.define(node, expr)


ROWS = (
    Operator("conv_transpose", "ConvTranspose", transposed_convolution,
             gradient=gradients.conv_transpose, reference=reference.conv_transpose, dims="images"),
)  # fmt: skip
