"""Whole numbers that stand for real ones: conversions, and convolutions of 8-bit tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from polysci.errors import SpecError
from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder, attribute_axes
from polysci.graph.operators.convolution import check_channels, layer, sum_parts, terms
from polysci.graph.operators.table import Operator
from polysci.graph.operators.windows import spans
from polysci.loop_ir.expressions import Expr, Index, Load, Lookup, Number, apply, axis
from polysci.numerics.quantization import Scales
from polysci.program.stages import LayerStage

_SHORT = {"uint8": "u8", "int8": "s8"}
_NARROW = (*_SHORT, "int16", "uint16")


def quantise(build: Builder, node: Node) -> None:
    """``saturate(rint(x / scale) + zero)``."""
    x, y = node.inputs[0], node.outputs[0]
    if build.dtype(y) not in _NARROW or build.dtype(x) not in ("float32", "int32"):
        build.refuse(f"{build.dtype(x)} to {build.dtype(y)}")
    scale, zero = (_parameter(build, node, node.input(at)) for at in (1, 2))
    value = apply("rint", apply("div", apply("real", build.load(x, y)), scale))
    build.define(node, saturate(apply("add", value, apply("real", zero)), build.dtype(y)))


def saturate(value: Expr, dtype: str) -> Expr:
    """A real whole number as one of a narrow type."""
    limits = np.iinfo(dtype)
    return apply("whole", apply("min", apply("max", value, limits.min), limits.max))


def dequantise(build: Builder, node: Node) -> None:
    """``(x - zero) * scale``."""
    x, y = node.inputs[0], node.outputs[0]
    if build.dtype(y) != "float32" or build.dtype(x) not in (*_NARROW, "int32"):
        build.refuse(f"{build.dtype(x)} to {build.dtype(y)}")
    scale, zero = (_parameter(build, node, node.input(at)) for at in (1, 2))
    value = apply("real", build.load(x, y))
    build.define(node, apply("mul", apply("sub", value, apply("real", zero)), scale))


def _parameter(build: Builder, node: Node, name: str) -> Expr:
    """A scale or zero point of an element: of the tensor, one along an axis, or one a block."""
    y, shape = node.outputs[0], build.shape(node.outputs[0])
    if not name:
        return Number(0.0)
    own, block = build.shape(name), int(node.attributes.get("block_size", 0))
    if own in ((), (1,)) and not block:
        return build.load(name, y)
    (along,) = attribute_axes([node.attributes.get("axis", 1)], len(shape))
    if not block:
        if own != shape[along : along + 1]:
            build.refuse(f"{list(own)} parameters for axis {along} of y")
        return build.along(name, along)
    blocks = (*shape[:along], -(-shape[along] // block), *shape[along + 1 :])
    if own != blocks:
        build.refuse(f"{list(own)} parameters for blocks of {block} along axis {along} of y")
    index: list[Index] = [axis(at) for at in range(len(shape))]
    index[along] = Lookup(tuple(at // block for at in range(shape[along])), axis(along))
    return Load(name, tuple(index))


def linear_conv(build: Builder, node: Node) -> None:
    """QLinearConv: sums of whole numbers, scaled."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.inputs[:8]
    y = node.outputs[0]
    check_channels(build, node)
    made = _layer(build, node, w, x_zero, w_zero, "u8:s8:u8")
    parts = [build.constant(name) for name in (x_scale, w_scale, y_scale, y_zero)]
    bias = build.constant(node.input(8)) if node.input(8) else np.zeros(1, np.int32)
    if made and bias is not None and all(part is not None for part in parts):
        (xs, ws, ys), zero = (_real(part) for part in parts[:3]), parts[3]
        try:
            factor = (xs * ws / ys).reshape(-1)
            scales = Scales(
                factor if factor.size > 1 else float(factor[0]), int(_real(zero).reshape(-1)[0])
            )
        except (ValueError, SpecError) as error:
            build.refuse(str(error))
        kinds = f"{_SHORT[build.dtype(x)]}:s8:{_SHORT[build.dtype(y)]}"
        problem = made.problem.with_(dtype=kinds)
        build.stages.append(replace(made, problem=problem, scales=scales, bias=node.input(8)))
        return
    total = _summed(build, node, x, w, x_zero, w_zero, "exact")
    if node.input(8):
        total = apply("add", total, apply("exact", build.along(node.input(8), 1)))
    scale = apply("mul", _number(build, x_scale), _channel(build, w_scale))
    ratio = apply("div", apply("exact", scale), apply("exact", _number(build, y_scale)))
    value = apply("rint", apply("mul", total, ratio))
    value = apply("add", value, apply("exact", _number(build, y_zero)))
    build.define(node, saturate(value, build.dtype(y)))


def integer_conv(build: Builder, node: Node) -> None:
    """ConvInteger: sums of whole numbers."""
    x, w = node.inputs[:2]
    x_zero, w_zero = node.input(2), node.input(3)
    check_channels(build, node)
    made = _layer(build, node, w, x_zero, w_zero, f"{_SHORT[build.dtype(x)]}:s8:s32")
    if made:
        build.stages.append(made)
        return
    build.define(node, _summed(build, node, x, w, x_zero, w_zero, "long"))


def _real(part: Any) -> Any:
    return np.asarray(part, np.float64)


def _layer(
    build: Builder, node: Node, w: str, x_zero: str, w_zero: str, dtype: str
) -> LayerStage | None:
    """A layer, where weights are known and 8 bits hold them less their zero point."""
    x, value = node.inputs[0], build.constant(w)
    zero = build.constant(x_zero) if x_zero else np.zeros(1, np.int64)
    of_w = build.constant(w_zero) if w_zero else np.zeros(1, np.int64)
    windows = spans(node, build.shape(x), build.shape(w)[2:], build.shape(node.outputs[0]))
    usable = value is not None and zero is not None and of_w is not None and zero.size == 1
    if not usable or len(windows) > 2 or build.dtype(x) not in _SHORT:
        return None
    assert value is not None and of_w is not None and zero is not None
    if not value.size:
        return None
    along = (-1, *[1] * (value.ndim - 1)) if of_w.size > 1 else ()
    moved = value.astype(np.int64) - of_w.astype(np.int64).reshape(along)
    if moved.min() < -128 or moved.max() > 127 or any(window.before < 0 for window in windows):
        return None
    name = build.number(f"{w}.s8", np.ascontiguousarray(moved.astype(np.int8)))
    groups = int(node.attributes.get("group", 1))
    made = layer(build, node, x, name, node.outputs[0], windows, groups, dtype)
    return replace(made, x_zero=int(zero.reshape(-1)[0]))


def _summed(
    build: Builder, node: Node, x: str, w: str, x_zero: str, w_zero: str, kind: str
) -> Expr:
    """The sums as they are written, in ``exact`` (double) or ``long`` arithmetic."""
    windows = spans(node, build.shape(x), build.shape(w)[2:], build.shape(node.outputs[0]))
    groups = int(node.attributes.get("group", 1))
    left, right, _, _ = terms(build, x, w, windows, groups)
    less: list[Expr] = []
    for value, zero in ((left, x_zero), (right, w_zero)):
        shifted: Expr = apply(kind, value)
        if zero:
            other = _channel(build, zero) if zero == w_zero else _number(build, zero)
            shifted = apply("sub", shifted, apply(kind, other))
        less.append(shifted)
    return sum_parts(build, node, x, w, windows, groups, (less[0], less[1]))


def _number(build: Builder, name: str) -> Expr:
    """The only element of a tensor."""
    return build.load(name, name) if build.shape(name) == () else _first(build, name)


def _first(build: Builder, name: str) -> Expr:
    if build.shape(name) != (1,):
        build.refuse(f"{name!r:.200} has {build.shape(name)} elements, expected one")
    return build.along(name, 0)


def _channel(build: Builder, name: str) -> Expr:
    """One number, or one an output channel."""
    return _number(build, name) if build.shape(name) in ((), (1,)) else build.along(name, 1)


ROWS = (
    Operator("quantize", "QuantizeLinear", quantise, dims="alike"),
    Operator("dequantize", "DequantizeLinear", dequantise, dims="alike"),
    Operator("quantized_conv", "QLinearConv", linear_conv),
    Operator("integer_conv", "ConvInteger", integer_conv),
)  # fmt: skip
