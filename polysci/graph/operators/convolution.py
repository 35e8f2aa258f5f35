"""Convolutions, transposed ones, and the gradient of their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from polysci.graph.builder import Backward
from polysci.graph.graph import CONV_WEIGHTS_GRADIENT, Node
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.table import Evaluation, Operator
from polysci.graph.operators.windows import Span, spans
from polysci.loop_ir.expressions import (
    Expr,
    Guard,
    Index,
    Load,
    Lookup,
    Reduce,
    apply,
    axis,
    combine,
)
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import Array
from polysci.numerics.dtypes import precision_named
from polysci.numerics.quantization import Scales
from polysci.ops import in_direction
from polysci.ops.convolutions import Conv2d, Conv3d, Convolution
from polysci.ops.matmul import Matmul
from polysci.program.stages import LayerStage, Window

AXES = {
    1: ((0,), (1,), (), (2,)),
    2: ((0,), (1,), (2,), (3,)),
    3: ((0,), (1,), (2,), (3,), (4,)),
}
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
    call = layer(build, node, x, w, y, windows, groups)
    build.stages.append(replace(call, bias=node.input(2)))


def check_channels(build: Builder, node: Node) -> None:
    """Refuses weights that do not fit the tensors, which shape inference lets pass."""
    x, w = (build.shape(node.inputs[at]) for at in (0, 3 if node.op == "quantized_conv" else 1))
    groups, taps = int(node.attributes.get("group", 1)), node.attributes.get("kernel_shape")
    if len(x) != len(w) or x[1] != w[1] * groups or groups < 1 or w[0] % groups:
        build.refuse(f"weights {list(w)} and {groups} groups for x {list(x)}")
    if taps and tuple(taps) != w[2:]:
        build.refuse(f"weights {list(w)} and kernel_shape {list(taps)}")
    if node.op == "conv" and node.input(2) and build.shape(node.input(2)) != (w[0],):
        build.refuse(f"bias {list(build.shape(node.input(2)))} for {w[0]} channels")


def layer(
    build: Builder, node: Node, x: str, w: str, y: str, windows: Sequence[Span], groups: int,
    dtype: str = "f32",
) -> LayerStage:  # fmt: skip
    """The convolution as a layer."""
    axes = AXES[len(windows)]
    problem = layer_problem(build, x, axes, build.shape(y)[1], windows, groups, dtype)
    return LayerStage(str(node), problem, Window(x, axes), Window(y, axes), w)


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

    @property
    def turned(self) -> bool:
        """Return whether rows run along the tensor's last axis, as those of a transposed matrix."""
        return self.rows[-1:] > (self.columns,)

    @property
    def stored(self) -> Window:
        """Both axes as they are stored."""
        axes = (self.rows, (self.columns,))
        return Window(self.tensor, axes[::-1] if self.turned else axes)


def matrix_product(
    build: Builder, node: Node, x: Matrix, y: Matrix, weights: str, *, bias: str = "",
    across: bool = False, alpha: float = 1.0, stack: tuple[tuple[int, ...], ...] = (),
    dtype: str = "f32", x_zero: int = 0, scales: Scales | None = None,
) -> None:  # fmt: skip
    """A layer ``y = alpha * x @ weights' + bias``.

    ``weights`` are (columns of y, columns of x), or the other way if they lie ``across``; ``stack``
    as ``LayerStage`` has it. A product by constant weights, or a stack, is a convolution by 1 x 1
    of one row of pixels; any other reads both matrices where they lie.
    """
    rows = prod(build.shape(x.tensor)[at] for at in x.rows)
    k, n = build.shape(x.tensor)[x.columns], build.shape(y.tensor)[y.columns]
    known = build.constant_value(weights) is not None
    if (known and not x.turned) or stack or precision_named(dtype).integer:
        steps = (1, n, 1, 1) if across else ()
        build.stages.append(LayerStage(
            str(node), Conv2d(1, k, 1, rows, n, 1, 1, dtype=dtype), x.window, y.window, weights,
            bias, w=steps, stack=stack, x_zero=x_zero, scales=scales,
        ))  # fmt: skip
        return
    stored, last = "a" * x.turned + "b" * (not across), len(build.shape(weights)) - 1
    problem = Matmul(
        rows, k, n, transposed=stored, alpha=alpha, constant="b" * known, dtype=dtype
    )  # fmt: skip
    w_axes = () if known else ((last - 1,), (last,))
    build.stages.append(
        LayerStage(str(node), problem, x.stored, y.stored, weights, bias, w_axes=w_axes)
    )


def layer_problem(
    build: Builder, x: str, axes: Axes, filters: int, windows: Sequence[Span], groups: int,
    dtype: str,
) -> Convolution:  # fmt: skip
    """The convolution of images x, of one axis as rows of an image."""
    shape, kind = build.shape(x), Conv3d if len(windows) == 3 else Conv2d
    idle = (Span(1, 1, 1, 1, 0, 0, 1),) if len(windows) == 1 else ()
    spans_, extents = (*idle, *windows), dict[str, int]()
    for (size, taps, out, _), own in zip(kind.FAMILY.axes, spans_, strict=True):
        extents |= {size: own.size, taps: own.taps, out: own.out}
    images, channels = (prod(shape[at] for at in axes[number]) for number in (0, 1))
    make: Callable[..., Convolution] = kind
    return make(
        N=images, C=channels, K=filters, groups=groups, dtype=dtype, **extents,
        stride=tuple(own.stride for own in spans_), pad=tuple(own.before for own in spans_),
        dilation=tuple(own.dilation for own in spans_),
    )  # fmt: skip


def sum_parts(
    build: Builder, node: Node, x: str, w: str, windows: Sequence[Span], groups: int,
    element: tuple[Expr, Expr] | None = None,
) -> Expr:  # fmt: skip
    """The convolution as it is written, for what no layer computes."""
    left, right, over, guards = terms(build, x, w, windows, groups)
    factors = element or (left, right)
    expr: Expr = Reduce("add", over, apply("mul", *factors), guards)
    if node.op == "conv" and node.input(2):
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
        _scatter(build, node, windows, groups)
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
    before = node.attributes.get("pads") or [0] * axes
    return tuple(
        Span(shape[at], taps[at], strides[at], dilations[at], before[at], 0, out[at])
        for at in range(axes)
    )


def _scatter(build: Builder, node: Node, windows: Sequence[Span], groups: int) -> None:
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


def weights_gradient(build: Builder, node: Node) -> None:
    """ConvWeightsGradient: a layer, or the sum as it is written."""
    (x, dy), dw = node.inputs, node.outputs[0]
    build.check_floats(node, x, dy)
    windows = spans(node, build.shape(x), build.shape(dw)[2:], build.shape(dy))
    groups = int(node.attributes["group"])
    empty = not all(build.values[name].size for name in (x, dy))
    odd = len(windows) > 3 or build.dtype(x) != "float32"
    if empty or odd or any(window.before < 0 for window in windows):
        build.define(node, _summed_weights(build, node, windows, groups))
        return
    axes = AXES[len(windows)]
    forward = layer_problem(build, x, axes, build.shape(dy)[1], windows, groups, "f32")
    build.stages.append(LayerStage(
        str(node), in_direction(forward, "bwd_w"), Window(x, axes), Window(dw, axes), dy,
        w_axes=axes,
    ))  # fmt: skip


def _summed_weights(build: Builder, node: Node, windows: Sequence[Span], groups: int) -> Expr:
    """The gradient of weights as it is written."""
    (x, dy), (filters, own) = node.inputs, build.shape(node.outputs[0])[:2]
    names = [f"p{at}" for at in range(len(windows))]
    places = [window.at(names[at], f"i{at + 2}") for at, window in enumerate(windows)]
    guards = [window.guard(names[at], f"i{at + 2}") for at, window in enumerate(windows)]
    over = (("n", build.shape(x)[0]), *zip(names, build.shape(dy)[2:], strict=True))
    image, pixels = combine({"n": 1}), [combine({name: 1}) for name in names]
    channel: Index = axis(1)
    if groups > 1:
        table = tuple(
            k // (filters // groups) * own + c for k in range(filters) for c in range(own)
        )
        channel = Lookup(table, combine({"i0": own, "i1": 1}))
    product_ = apply("mul", Load(x, (image, channel, *places)), Load(dy, (image, axis(0), *pixels)))
    return Reduce("add", over, product_, tuple(guard for guard in guards if guard))


def convolution_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Conv: weights of both directions lie alike."""
    x, w, dy = node.inputs[0], node.inputs[1], dys[0]
    attributes = _words(back, node, x, node.outputs[0])
    dx = _weigh(back, "conv_transpose", (dy, w), x, attributes) if back.wants(x) else ""
    dw = _weigh(back, CONV_WEIGHTS_GRADIENT, (x, dy), w, attributes) if back.wants(w) else ""
    return [dx, dw, *_bias(back, node, dy)]


def conv_transpose_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """ConvTranspose: the small and the large images have changed places."""
    x, w, dy = node.inputs[0], node.inputs[1], dys[0]
    attributes = _words(back, node, node.outputs[0], x)
    dx = _weigh(back, "conv", (dy, w), x, attributes) if back.wants(x) else ""
    dw = _weigh(back, CONV_WEIGHTS_GRADIENT, (dy, x), w, attributes) if back.wants(w) else ""
    return [dx, dw, *_bias(back, node, dy)]


def _weigh(
    back: Backward, op: str, inputs: Sequence[str], like: str, attributes: dict[str, Any]
) -> str:
    if op != "conv_transpose":
        attributes = {name: value for name, value in attributes.items() if name != "output_padding"}
    return back.add(op, inputs, back.shape(like), back.dtype(like), **attributes)


def _bias(back: Backward, node: Node, dy: str) -> list[str]:
    """The sum over all but channels, where there is a bias."""
    if len(node.inputs) < 3:
        return []
    if not node.inputs[2] or not back.wants(node.inputs[2]):
        return [""]
    return [back.total(dy, [at for at in range(len(back.shape(dy))) if at != 1])]


def _words(back: Backward, node: Node, large: str, small: str) -> dict[str, Any]:
    """Attributes that say windows by numbers alone; between the larger images and the smaller."""
    taps, high, low = (back.shape(name)[2:] for name in (node.inputs[1], large, small))
    axes = len(taps)
    strides = list(node.attributes.get("strides") or [1] * axes)
    dilations = list(node.attributes.get("dilations") or [1] * axes)
    before = list(node.attributes.get("pads") or [0] * axes)[:axes]
    reaches = [(low[at] - 1) * strides[at] + (taps[at] - 1) * dilations[at] + 1
               for at in range(axes)]  # fmt: skip
    after = [reaches[at] - high[at] - before[at] for at in range(axes)]
    return {
        "kernel_shape": list(taps), "strides": strides, "dilations": dilations,
        "pads": [*before, *(max(0, size) for size in after)],
        "output_padding": [max(0, -size) for size in after],
        "group": int(node.attributes.get("group", 1)),
    }  # fmt: skip


def conv_weights_reference(of: Evaluation) -> Sequence[Array]:
    """One product a tap: all pixels of filters by the pixels of channels that the tap reads."""
    x, dy = of.inputs
    attributes = of.node.attributes
    taps, groups, axes = attributes["kernel_shape"], attributes["group"], x.ndim - 2
    wide = [(0, 0), (0, 0), *zip(attributes["pads"][:axes], attributes["pads"][axes:], strict=True)]
    padded = np.pad(x, wide)
    filters, channels = dy.shape[1] // groups, x.shape[1] // groups
    summed = [0, *range(2, x.ndim)]
    dw = np.zeros((dy.shape[1], channels, *taps), x.dtype)
    for tap in np.ndindex(*taps):
        steps = zip(tap, attributes["dilations"], attributes["strides"], dy.shape[2:], strict=True)
        read = [slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, s, n in steps]
        window = padded[(slice(None), slice(None), *read)]
        for group in range(groups):
            own = slice(group * filters, (group + 1) * filters)
            mine = window[:, group * channels : (group + 1) * channels]
            dw[(own, slice(None), *tap)] = np.tensordot(dy[:, own], mine, (summed, summed))
    return [dw]


def conv_transpose_reference(of: Evaluation) -> Sequence[Array] | None:
    """A product a tap, added to the pixels of y that the tap reaches; ONNX's takes minutes."""
    if not of.results or 0 in of.results[0].shape:
        return None
    (x, w, *bias), shape = of.inputs, of.results[0].shape
    attributes, axes = of.node.attributes, x.ndim - 2
    groups, pads = attributes.get("group", 1), attributes.get("pads") or [0] * axes
    steps, gaps = (attributes.get(name) or [1] * axes for name in ("strides", "dilations"))
    spans = [*zip(x.shape[2:], steps, gaps, w.shape[2:], strict=True)]
    reached = [(n - 1) * s + (t - 1) * d + 1 for n, s, d, t in spans]
    sizes = map(max, reached, map(sum, zip(shape[2:], pads[:axes], strict=True)))
    y = np.zeros((*shape[:2], *sizes), x.dtype)
    filters, channels = w.shape[1], w.shape[0] // groups
    for tap in np.ndindex(*w.shape[2:]):
        steps = [slice(t * d, t * d + (n - 1) * s + 1, s)
                 for t, (n, s, d, _) in zip(tap, spans, strict=True)]  # fmt: skip
        for group in range(groups):
            own = slice(group * channels, (group + 1) * channels)
            product = np.tensordot(x[:, own], w[(own, slice(None), *tap)], ([1], [0]))
            part = slice(group * filters, (group + 1) * filters)
            y[(slice(None), part, *steps)] += np.moveaxis(product, -1, 1)
    inner = [slice(low, low + n) for low, n in zip(pads[:axes], shape[2:], strict=True)]
    y = y[(slice(None), slice(None), *inner)]
    return [y + bias[0].reshape(-1, *[1] * axes) if bias else y]


ROWS = (
    Operator("conv", "Conv", conv, gradient=convolution_gradient, dims="images"),
    Operator("conv_transpose", "ConvTranspose", transposed_convolution,
             gradient=conv_transpose_gradient, reference=conv_transpose_reference, dims="images"),
    Operator(CONV_WEIGHTS_GRADIENT, "", weights_gradient, reference=conv_weights_reference),
)  # fmt: skip
