"""Transposed convolutions: gradients of convolutions, or a convolution a residue of the stride."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import gcd, prod

import numpy as np

from polysci.network.ir.expressions import (
    Expr,
    Index,
    Load,
    Lookup,
    Number,
    Reduce,
    axis,
    combine,
)
from polysci.network.ir.graph import Array, Node
from polysci.network.ir.stages import ConcatStage, LayerStage, ViewStage, Window
from polysci.network.operators.builder import Builder, apply
from polysci.network.operators.convolution import AXES, layer_problem
from polysci.network.operators.windows import Span, auto_pad_of
from polysci.ops.conv2d_backward_data import Conv2dBackwardData
from polysci.polyhedral.affine import Affine

MOST_PHASES = 256  # layers that one transposed convolution may become


def transposed_convolution(build: Builder, node: Node) -> None:
    """ConvTranspose: a convolution for every residue of the output's place modulo the stride."""
    x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
    build.check_floats(node, x, w)
    groups, value = int(node.attributes.get("group", 1)), build.constant(w)
    windows = _upwards(build, node)
    shape, taps = build.shape(w), node.attributes.get("kernel_shape")
    if build.shape(x)[1] != shape[0] or groups < 1 or shape[0] % groups:
        build.refuse(f"weights {list(shape)} and {groups} groups for x {list(build.shape(x))}")
    if taps and tuple(taps) != shape[2:]:
        build.refuse(f"weights {list(shape)} and kernel_shape {list(taps)}")
    if node.input(2) and build.shape(node.input(2)) != (shape[1] * groups,):
        build.refuse(f"bias {list(build.shape(node.input(2)))} for {shape[1] * groups} channels")
    empty = not all(build.values[name].size for name in (x, w, y))
    many = prod(min(window.stride, window.out) for window in windows) > MOST_PHASES
    odd = many or len(windows) > 2 or build.dtype(x) != "float32"
    if empty or odd:
        _scattered(build, node, windows, groups)
        return
    axes, channels = AXES[len(windows)], shape[1] * groups
    if value is None and all(window.stride == 1 for window in windows):
        forward = layer_problem(build, y, axes, shape[0], _downwards(windows), groups, "f32")
        build.stages.append(LayerStage(
            str(node), Conv2dBackwardData(forward), Window(x, axes), Window(y, axes), w,
            node.input(2),
        ))  # fmt: skip
        return
    turned = None if value is None else _turned(value, groups)
    choices = [
        [_Phase(window, at) for at in range(min(window.stride, window.out))] for window in windows
    ]
    # Of one filter, searches take pixels for neighbours, which those of a phase in y are not.
    apart = channels == 1 and any(len(phases) > 1 for phases in choices)
    counts = [max(phase.span.out for phase in phases) for phases in choices]
    parts: list[str] = []
    for number, phases in enumerate(product(*choices)):
        taken = [phase.taps or [0] for phase in phases]
        real = all(phase.taps for phase in phases)
        if turned is None:
            name = _gathered_weights(build, node, taken, real, groups)
        else:
            weights = turned[np.ix_(*map(np.arange, turned.shape[:2]), *taken)] * np.float32(real)
            name = build.number(f"{w}.phase{number}", np.ascontiguousarray(weights))
        spans = [phase.span for phase in phases]
        start = {2 + at: phase.first for at, phase in enumerate(phases)}
        step = {2 + at: window.stride for at, window in enumerate(windows)}
        skip = {2 + at: phase.skip for at, phase in enumerate(phases)}
        target = Window(y, axes, start, step)
        if apart:
            spans = [replace(span, out=count) for span, count in zip(spans, counts, strict=True)]
            parts.append(build.fresh(f"{y}.phase{number}", (build.shape(y)[0], 1, *counts)))
            target = Window(parts[-1], axes)
        problem = layer_problem(build, x, axes, channels, spans, groups, "f32")
        build.stages.append(LayerStage(
            f"{node} {number}", problem, Window(x, axes, skip), target, name, node.input(2),
        ))  # fmt: skip
    if apart:
        _interleave(build, node, parts, [len(phases) for phases in choices], counts)


def _downwards(windows: Sequence[Span]) -> list[Span]:
    """The windows of the convolution from y to x that a transposed one is the transpose of."""
    return [replace(window, size=window.out, out=window.size) for window in windows]


def _gathered_weights(
    build: Builder, node: Node, taps: Sequence[Sequence[int]], real: bool, groups: int
) -> str:
    """Weights (K, C/groups, ...) of some taps of those (C, K/groups, ...) that are no constant."""
    w = node.inputs[1]
    channels, filters = build.shape(w)[:2]
    own = channels // groups
    shape = (groups * filters, own, *map(len, taps))
    made = build.fresh(f"{w}.phase", shape)
    every = [(k // filters * own + c, k % filters) for k in range(shape[0]) for c in range(own)]
    spot = combine({"i0": own, "i1": 1})
    first: list[Index] = [axis(1), axis(0)] if groups == 1 else [
        Lookup(tuple(places), spot) for places in zip(*every, strict=True)
    ]  # fmt: skip
    steps = [(some[1] - some[0] if len(some) > 1 else 0, some[0]) for some in taps]
    places = [combine({f"i{2 + at}": step}, low) for at, (step, low) in enumerate(steps)]
    return build.define(node, Load(w, (*first, *places)) if real else Number(0.0), made)


def _interleave(
    build: Builder, node: Node, parts: Sequence[str], steps: Sequence[int], counts: Sequence[int]
) -> None:
    """``y[i]`` is element ``i // s`` of phase ``i % s``; every phase is a tensor of one channel."""
    y = node.outputs[0]
    images, _, *extents = build.shape(y)
    joined = build.fresh(f"{y}.phases", (images, len(parts), *counts))
    build.stages.append(ConcatStage(str(node), joined, tuple(parts), 1))
    split = build.fresh(f"{y}.steps", (images, *steps, *counts))
    build.stages.append(ViewStage(str(node), split, joined))
    index: list[Index] = [axis(0)]
    index += [
        Lookup(tuple(place % step for place in range(extent)), axis(2 + at))
        for at, (extent, step) in enumerate(zip(extents, steps, strict=True))
    ]
    index += [
        Lookup(tuple(place // step for place in range(extent)), axis(2 + at))
        for at, (extent, step) in enumerate(zip(extents, steps, strict=True))
    ]
    build.define(node, Load(split, tuple(index)))


def _turned(value: Array, groups: int) -> Array:
    """Weights (C, K/groups, ...) as (K, C/groups, ...)."""
    channels, filters = value.shape[:2]
    parts = value.reshape(groups, channels // groups, filters, *value.shape[2:])
    return parts.swapaxes(1, 2).reshape(groups * filters, channels // groups, *value.shape[2:])


class _Phase:
    """The outputs ``first + i * stride`` of an axis: a convolution of x by some of the taps."""

    def __init__(self, window: Span, first: int) -> None:
        step = window.stride // gcd(window.stride, window.dilation)
        self.first = first
        reach = first + window.before
        taps = [r for r in range(window.taps) if (reach - r * window.dilation) % window.stride == 0]
        self.taps = taps[::-1]  # ascending places in x
        low = (reach - taps[-1] * window.dilation) // window.stride if taps else 0
        count = -(-(window.out - first) // window.stride)
        self.skip = min(max(low, 0), window.size - 1)
        if self.skip < low:
            self.taps = []  # all that it reads is beyond x
        apart = step * window.dilation // window.stride if len(taps) > 1 else 1
        self.span = Span(
            window.size - self.skip, max(1, len(taps)), 1, apart, max(-low, 0), 0, count
        )


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


OPERATORS = {"ConvTranspose": transposed_convolution}
