"""Convolutions: layers of two axes, to which those of one or three are brought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, prod

import numpy as np

from polysci.network.ir.expressions import (
    Expr,
    Guard,
    Index,
    Load,
    Lookup,
    Number,
    Reduce,
    Where,
    axis,
    combine,
)
from polysci.network.ir.graph import Array, Node
from polysci.network.ir.stages import ConcatStage, LayerStage, LoopStage, ViewStage, Window
from polysci.network.operators.builder import Builder, apply
from polysci.network.operators.windows import Span, auto_pad_of, spans
from polysci.numerics.quantization import Scales
from polysci.ops.conv2d import Conv2d
from polysci.polyhedral.affine import Affine

MOST_PHASES = 256  # layers that one transposed convolution may become
_AXES = {1: ((0,), (1,), (), (2,)), 2: ((0,), (1,), (2,), (3,))}
Axes = tuple[tuple[int, ...], ...]


def conv(build: Builder, node: Node) -> None:
    x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
    build.check_floats(node, x, w)
    windows = spans(node, build.shape(x), build.shape(w)[2:], build.shape(y))
    check_channels(build, node)
    groups = int(node.attributes.get("group", 1))
    if not 1 <= len(windows) <= 3:
        build.refuse(f"a window of {len(windows)} axes")
    empty = not all(build.values[name].size for name in (x, w, y))
    if empty or build.dtype(x) != "float32" or any(window.before < 0 for window in windows):
        build.define(node, sum_parts(build, node, x, w, windows, groups))
        return
    made = layer(build, node, x, w, y, windows, groups)
    build.stages.append(replace(made, bias=node.input(2)))


def check_channels(build: Builder, node: Node) -> None:
    """Refuses weights that do not fit the tensors, which shape inference lets pass."""
    x, w = (build.shape(node.inputs[at]) for at in (0, 3 if node.op == "QLinearConv" else 1))
    groups, taps = int(node.attributes.get("group", 1)), node.attributes.get("kernel_shape")
    if len(x) != len(w) or x[1] != w[1] * groups or groups < 1 or w[0] % groups:
        build.refuse(f"weights {list(w)} and {groups} groups for x {list(x)}")
    if taps and tuple(taps) != w[2:]:
        build.refuse(f"weights {list(w)} and kernel_shape {list(taps)}")
    if node.op == "Conv" and node.input(2) and build.shape(node.input(2)) != (w[0],):
        build.refuse(f"bias {list(build.shape(node.input(2)))} for {w[0]} channels")


def layer(
    build: Builder, node: Node, x: str, w: str, y: str, windows: Sequence[Span], groups: int,
    dtype: str = "f32",
) -> LayerStage:  # fmt: skip
    """The convolution as a layer of two axes."""
    if len(windows) == 3:
        x, w, windows, axes, y_axes = _flattened(build, node, x, w, windows, groups)
    else:
        axes = y_axes = _AXES[len(windows)]
    problem = _problem(build, x, axes, build.shape(y)[1], windows, groups, dtype)
    return LayerStage(str(node), problem, Window(x, axes), Window(y, y_axes), w)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor as a matrix: the axes that its rows run over together, and that of its columns."""

    tensor: str
    rows: tuple[int, ...]
    columns: int

    @property
    def window(self) -> Window:
        """Rows as the pixels of one image row, columns as channels."""
        return Window(self.tensor, ((), (self.columns,), (), self.rows))


def matrix_product(
    build: Builder, node: Node, x: Matrix, y: Matrix, weights: str, *, bias: str = "",
    strides: tuple[int, ...] = (), stack: tuple[tuple[int, ...], ...] = (), dtype: str = "f32",
    x_zero: int = 0, scales: Scales | None = None,
) -> None:  # fmt: skip
    """A layer ``y = x @ weights' + bias``: a convolution by 1 x 1 of one row of pixels.

    ``weights`` are (columns of y, columns of x), or lie by ``strides`` along these two; ``stack``
    as ``LayerStage`` has it.
    """
    rows = prod(build.shape(x.tensor)[at] for at in x.rows)
    k, n = build.shape(x.tensor)[x.columns], build.shape(y.tensor)[y.columns]
    problem = Conv2d(1, k, 1, rows, n, 1, 1, dtype=dtype)
    steps = (*strides, 1, 1) if strides else ()
    build.stages.append(LayerStage(
        str(node), problem, x.window, y.window, weights, bias, w=steps, stack=stack,
        x_zero=x_zero, scales=scales,
    ))  # fmt: skip


def _problem(
    build: Builder, x: str, axes: Axes, filters: int, windows: Sequence[Span], groups: int,
    dtype: str,
) -> Conv2d:  # fmt: skip
    shape = build.shape(x)
    images, channels = (int(np.prod([shape[at] for at in axes[number]])) for number in (0, 1))
    idle = Span(1, 1, 1, 1, 0, 0, 1)
    high, wide = windows if len(windows) == 2 else (idle, windows[0])
    return Conv2d(
        images, channels, high.size, wide.size, filters, high.taps, wide.taps,
        stride=(high.stride, wide.stride), pad=(high.before, wide.before),
        dilation=(high.dilation, wide.dilation), groups=groups, P=high.out, Q=wide.out, dtype=dtype,
    )  # fmt: skip


def _flattened(
    build: Builder, node: Node, x: str, w: str, windows: Sequence[Span], groups: int
) -> tuple[str, str, tuple[Span, ...], Axes, Axes]:
    """Three axes as two: the taps along the first one become channels of more images."""
    deep, *rest = windows
    n, channels, _, height, width = build.shape(x)
    own = channels // groups
    shape = (n, deep.out, groups, deep.taps, own, height, width)
    taken = build.fresh(f"{node.outputs[0]}.taps", shape, build.dtype(x), (0, 1, 5, 6, 2, 3, 4))
    place = combine({"i1": deep.stride, "i3": deep.dilation}, -deep.before)
    channel = combine({"i2": own, "i4": 1})
    element: Expr = Load(x, (axis(0), channel, place, axis(5), axis(6)))
    if deep.guard("i1", "i3"):
        element = Where((Guard(place, deep.size),), element, Number(0.0))
    build.stages.append(LoopStage(str(node), taken, element))
    value = build.constant(w)
    order = (0, 2, 1, 3, 4)
    if value is not None:
        turned = value.transpose(order)
        w = build.number(f"{w}.taps", np.ascontiguousarray(turned.reshape(
            turned.shape[0], -1, *turned.shape[3:]
        )))  # fmt: skip
    else:
        filters, _, _, r, s = build.shape(w)
        moved = build.fresh(f"{w}.taps", (filters, deep.taps, own, r, s), build.dtype(w))
        build.stages.append(LoopStage(str(node), moved, Load(w, tuple(axis(at) for at in order))))
        w = moved
    return taken, w, tuple(rest), ((0, 1), (2, 3, 4), (5,), (6,)), ((0, 2), (1,), (3,), (4,))


def sum_parts(
    build: Builder, node: Node, x: str, w: str, windows: Sequence[Span], groups: int,
    element: tuple[Expr, Expr] | None = None,
) -> Expr:  # fmt: skip
    """The convolution as it is written, for what no layer computes."""
    left, right, over, guards = terms(build, x, w, windows, groups)
    factors = element or (left, right)
    expr: Expr = Reduce("add", over, apply("mul", *factors), guards)
    if node.op == "Conv" and node.input(2):
        expr = apply("add", expr, build.along(node.input(2), 1))
    return expr


def terms(
    build: Builder, x: str, w: str, windows: Sequence[Span], groups: int
) -> tuple[Load, Load, tuple[tuple[str, int], ...], tuple[Guard, ...]]:
    """Factors of a product of a convolution, what it is summed over, and where it is real."""
    filters, own = build.shape(w)[:2]
    names = [f"r{at}" for at in range(len(windows))]
    places = [window.at(f"i{at + 2}", names[at]) for at, window in enumerate(windows)]
    guards = [window.guard(f"i{at + 2}", names[at]) for at, window in enumerate(windows)]
    taps = [Affine(((name, 1),)) for name in names]
    over = (("c", own), *((n, window.taps) for n, window in zip(names, windows, strict=True)))
    channel: Index = group_channel(filters, own, groups)
    left = Load(x, (axis(0), channel, *places))
    right = Load(w, (axis(1), Affine((("c", 1),)), *taps))
    return left, right, over, tuple(guard for guard in guards if guard)


def group_channel(filters: int, own: int, groups: int) -> Index:
    """The channel of x that term ``c`` of output channel ``i1`` reads."""
    if groups == 1:
        return Affine((("c", 1),))
    size = filters // groups
    table = tuple(k // size * own + c for k in range(filters) for c in range(own))
    return Lookup(table, combine({"i1": own, "c": 1}))


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
    if empty or value is None or odd:
        _scattered(build, node, windows, groups)
        return
    turned = _turned(value, groups)
    axes = _AXES[len(windows)]
    choices = [
        [_Phase(window, at) for at in range(min(window.stride, window.out))] for window in windows
    ]
    # Of one filter, searches take pixels for neighbours, which those of a phase in y are not.
    apart = turned.shape[0] == 1 and any(len(phases) > 1 for phases in choices)
    counts = [max(phase.span.out for phase in phases) for phases in choices]
    parts: list[str] = []
    for number, phases in enumerate(product(*choices)):
        index: list[Array] = [np.array(phase.taps or [0]) for phase in phases]
        weights = turned[np.ix_(*map(np.arange, turned.shape[:2]), *index)]
        if not all(phase.taps for phase in phases):
            weights = np.zeros_like(weights)
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
        problem = _problem(build, x, axes, turned.shape[0], spans, groups, "f32")
        build.stages.append(LayerStage(
            f"{node} {number}", problem, Window(x, axes, skip), target, name, node.input(2),
        ))  # fmt: skip
    if apart:
        _interleave(build, node, parts, [len(phases) for phases in choices], counts)


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


OPERATORS = {"Conv": conv, "ConvTranspose": transposed_convolution}
