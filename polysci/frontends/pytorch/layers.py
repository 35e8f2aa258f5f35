"""Calls with weights and windows: products, convolutions, pools, attention, recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod, sqrt
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.frontends.pytorch.call import AtenCall, AtenRules, per_axis
from polysci.graph.formulas import derive
from polysci.numerics.arrays import Array


def linear(call: AtenCall, x: str, weight: str, bias: str | None = None) -> str:
    """Add ``input @ weight' + bias`` over the last axis."""
    *rows, columns = call.graph.shape(x)
    x = call.graph.reshape(x, (prod(rows), columns))
    y = call.add(
        "gemm", x, weight, bias, shape=(prod(rows), call.graph.shape(weight)[0]), transpose_b=1
    )
    return call.reshape(y)


def addmm(call: AtenCall, x: str, mat1: str, mat2: str, beta: float = 1, alpha: float = 1) -> str:
    attributes: dict[str, Any] = {"alpha": float(alpha), "beta": float(beta)}
    (a, across), (b, back) = (_factor(call, name) for name in (mat1, mat2))
    return call.add(
        "gemm", a, b, x if beta else None, transpose_a=across, transpose_b=back, **attributes
    )


def product(call: AtenCall, x: str, mat2: str = "", **others: Any) -> str:
    mat2 = mat2 or others.get("other") or others["vec"]
    (a, across), (b, back) = (_factor(call, name) for name in (x, mat2))
    if (across or back) and len(call.shape) == 2:
        return call.add("gemm", a, b, transpose_a=across, transpose_b=back)
    return call.add("matmul", x, mat2)


def _factor(call: AtenCall, x: str) -> tuple[str, int]:
    """Return a matrix, and whether to transpose it: one that x is the transpose of, or x."""
    nodes = call.graph.nodes
    maker = next((node for node in reversed(nodes) if x in node.outputs), None)
    turned = maker is not None and maker.op == "transpose" and len(call.graph.shape(x)) == 2
    return (maker.inputs[0], 1) if maker is not None and turned else (x, 0)


def baddbmm(
    call: AtenCall, x: str, batch1: str, batch2: str, beta: float = 1, alpha: float = 1
) -> str:
    y = call.add("matmul", batch1, batch2)
    text = ("y" if alpha == 1 else "y * alpha") + ("" if beta == 0 else " + x * beta")
    text = text.replace(" * beta", "") if beta == 1 else text
    return derive(call.graph, text, x=x, y=y, alpha=float(alpha), beta=float(beta))


def einsum(call: AtenCall, equation: str, tensors: Sequence[str], **_: Any) -> str:
    return call.add("einsum", *tensors, equation=equation)


def attention(
    call: AtenCall, query: str, key: str, value: str, attn_mask: str | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> str:  # fmt: skip
    """Add ``softmax(query @ key' * scale + mask) @ value``."""
    graph = call.graph
    if dropout_p:
        call.refuse("dropout while a model learns; call eval() on the module first")
    if enable_gqa:
        key, value = (_repeat_heads(call, name, graph.shape(query)[-3]) for name in (key, value))
    shape, keys = graph.shape(query), graph.shape(key)[-2]
    scaled = derive(graph, "q * s", q=query, s=1 / sqrt(shape[-1]) if scale is None else scale)
    rank = len(graph.shape(key))
    turned = graph.transpose(key, [*range(rank - 2), rank - 1, rank - 2])
    wide = (*np.broadcast_shapes(shape[:-2], graph.shape(key)[:-2]), shape[-2], keys)
    scores = call.add("matmul", scaled, turned, shape=wide)
    if is_causal:
        below = np.tril(np.ones((shape[-2], keys), bool))
        attn_mask = graph.constant(below)
    if attn_mask is not None:
        text = "select(m, s, least)" if graph.dtype(attn_mask) == "bool" else "s + m"
        scores = derive(graph, text, s=scores, m=attn_mask, least=float("-inf"))
    shares = call.add("softmax", scores, shape=graph.shape(scores), axis=-1)
    y = call.add("matmul", shares, value)
    if attn_mask is None or not _may_hide_rows(graph.constant_value(attn_mask)):
        return y
    real = "float32" if graph.dtype(attn_mask) == "bool" else graph.dtype(attn_mask)
    rows = graph.shape(attn_mask)
    last = call.whole([len(rows) - 1])
    most = graph.add("reduce_max", (call.cast(attn_mask, real), last), (*rows[:-1], 1), real)
    text = "select(most > least, y, 0)"
    least = 0.0 if graph.dtype(attn_mask) == "bool" else float("-inf")
    return derive(graph, text, most=most, least=least, y=y)


def _may_hide_rows(mask: Array | None) -> bool:
    """Tell whether a query may see no key at all, whose result is 0 to PyTorch."""
    if mask is None or not mask.shape[-1]:
        return True
    return not bool((mask if mask.dtype == bool else mask > -np.inf).any(-1).all())


def _repeat_heads(call: AtenCall, x: str, heads: int) -> str:
    """Repeat every head as often as heads of queries share it."""
    *batch, own, length, size = call.graph.shape(x)
    apart = call.graph.reshape(x, (*batch, own, 1, length, size))
    wide = call.graph.expand(apart, (*batch, own, heads // own, length, size))
    return call.graph.reshape(wide, (*batch, heads, length, size))


def convolution(
    call: AtenCall, x: str, weight: str, bias: str | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int,
) -> str:  # fmt: skip
    more = {"output_padding": output_padding} if transposed else {}
    op = "conv_transpose" if transposed else "conv"
    return convolve(
        op, call, x, weight, bias, stride, padding, dilation=dilation, groups=groups, **more
    )


def convolve(
    op: str, call: AtenCall, x: str, weight: str, bias: str | None = None,
    stride: int | Sequence[int] = 1, padding: str | int | Sequence[int] = 0, **arguments: Any,
) -> str:  # fmt: skip
    """Add Conv or ConvTranspose of images, or of one without an axis of images."""
    graph, taps = call.graph, call.graph.shape(weight)[2:]
    dilation, groups = per_axis(arguments.get("dilation", 1), len(taps)), arguments.get("groups", 1)
    more = [d * (count - 1) for d, count in zip(dilation, taps, strict=True)]
    attributes = convolution_attributes(
        taps, stride, 0 if isinstance(padding, str) else padding, dilation, groups
    )
    if padding == "same":  # behind the image, where one of both sides is padded more
        attributes["pads"] = [*(count // 2 for count in more), *(-(-count // 2) for count in more)]
    if "output_padding" in arguments:
        attributes["output_padding"] = per_axis(arguments["output_padding"], len(taps))
    lead = [1] * (len(graph.shape(x)) == len(taps) + 1)
    images = graph.reshape(x, (*lead, *graph.shape(x)))
    return call.reshape(
        call.add(op, images, weight, bias, shape=(*lead, *call.shape), **attributes)
    )


def convolution_attributes(
    taps: Sequence[int], stride: int | Sequence[int], padding: int | Sequence[int],
    dilation: int | Sequence[int], groups: int,
) -> dict[str, Any]:  # fmt: skip
    """Return the attributes of Conv and ConvTranspose."""
    return {
        "kernel_shape": [*taps], "strides": per_axis(stride, len(taps)),
        "pads": per_axis(padding, len(taps)) * 2, "dilations": per_axis(dilation, len(taps)),
        "group": groups,
    }  # fmt: skip


def pool(
    op: str, axes: int, call: AtenCall, x: str, kernel_size: Sequence[int],
    stride: Sequence[int] = (), padding: Sequence[int] = (0,), dilation: Sequence[int] = (1,),
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    """Pool windows of the last axes; places of the largest elements are not computed."""
    if divisor_override:
        call.refuse(f"divisor_override {divisor_override}")
    attributes = pool_attributes(axes, kernel_size, stride, padding, ceil_mode)
    if op == "max_pool":
        attributes["dilations"] = per_axis(dilation, axes)
    else:
        attributes["count_include_pad"] = int(count_include_pad)
    shape = call.graph.shape(x)
    images = call.graph.reshape(x, (1, *shape)) if len(shape) == axes + 1 else x
    wide = (1, *call.shape) if images != x else call.shape
    y = call.reshape(call.add(op, images, shape=wide, **attributes))
    return y if len(call.results) == 1 else (y, "")


def pool_attributes(
    axes: int, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    ceil_mode: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return the attributes that pools of both kinds have."""
    taps = per_axis(kernel_size, axes)
    return {
        "kernel_shape": taps, "strides": per_axis(stride, axes) if stride else taps,
        "pads": per_axis(padding, axes) * 2, "ceil_mode": int(ceil_mode),
    }  # fmt: skip


def adaptive_pool(op: str, axes: int, call: AtenCall, x: str, output_size: Sequence[int]) -> Any:
    """Pool in windows of about one size: a mean of unequal ones is a product along each axis."""
    before, after = call.graph.shape(x)[-axes:], call.shape[-axes:]
    if not any(a % b for a, b in zip(before, after, strict=True)):
        taps = [a // b for a, b in zip(before, after, strict=True)]
        return pool(op, axes, call, x, taps)
    if op == "max_pool":
        call.refuse(f"{list(before)} elements in {list(after)} windows")
    for at, (size, windows) in enumerate(zip(before, after, strict=True)):
        x = multiply_along(call, x, at - axes, shares_of_windows(size, windows))
    return x


def shares_of_windows(size: int, windows: int) -> Array:
    """Return the share of each element in the mean of each window: (size, windows)."""
    shares = np.zeros((size, windows))
    for at in range(windows):
        first, last = at * size // windows, -(-(at + 1) * size // windows)
        shares[first:last, at] = 1 / (last - first)
    return shares


def multiply_along(call: AtenCall, x: str, axis: int, matrix: Array) -> str:
    """Multiply x along an axis, counted from the last, with a known matrix."""
    order = [*range(len(call.graph.shape(x)))]
    order[axis], order[-1] = order[-1], order[axis]
    turned = call.graph.transpose(x, order)
    shape = (*call.graph.shape(turned)[:-1], matrix.shape[1])
    known = call.graph.constant(matrix.astype(call.dtype))
    return call.graph.transpose(call.add("matmul", turned, known, shape=shape), order)


def upsample(
    mode: str, way: str, call: AtenCall, output_size: Sequence[int] | None = None,
    align_corners: bool = False, scale_factors: Sequence[float] | None = None, **arguments: Any,
) -> str:  # fmt: skip
    """Add Resize; places in x follow from factors where they are told, else from sizes."""
    x, names = arguments["x"], ("scales", "scales_d", "scales_h", "scales_w")
    scales = [arguments[name] for name in names if name in arguments]
    factors = scale_factors or (None if None in scales else scales)
    way = "align_corners" if align_corners else way
    inputs: tuple[str | None, ...] = (None, None, call.whole(call.shape))
    if factors and not align_corners:
        inputs = (None, call.graph.constant(np.array([1, 1, *factors], np.float32)))
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": way}
    attributes |= {"nearest_mode": "floor"} if mode == "nearest" else {}
    attributes |= {"cubic_coeff_a": -0.75} if mode == "cubic" else {}
    return call.add("resize", x, *inputs, **attributes)


def grid_sampler(
    call: AtenCall, x: str, grid: str, interpolation_mode: int, padding_mode: int,
    align_corners: bool,
) -> str:  # fmt: skip
    return call.add(
        "grid_sample", x, grid, mode=("linear", "nearest", "cubic")[interpolation_mode],
        padding_mode=("zeros", "border", "reflection")[padding_mode],
        align_corners=int(align_corners),
    )  # fmt: skip


# Operator -> the graph's, and its gates in PyTorch's order.
_CELLS = {"lstm": ("lstm", "ifgo"), "gru": ("gru", "rzn"), "rnn_tanh": ("rnn", "n"),
          "rnn_relu": ("rnn", "n")}  # fmt: skip


def recurrent(
    name: str, call: AtenCall, x: str, hx: str | Sequence[str], params: Sequence[str],
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool,
) -> tuple[str, ...]:  # fmt: skip
    """Add layers one above the other; states are (layers * directions, batch, n), as PyTorch's."""
    op, order = _CELLS[name]
    graph, count = call.graph, 1 + bidirectional
    if train and dropout and num_layers > 1:
        call.refuse("dropout while a model learns; call eval() on the module first")
    if len(params) != num_layers * count * (2 + 2 * has_biases):
        call.refuse("projections of the hidden state")
    attributes: dict[str, Any] = {"order": order} if len(order) > 1 else {}
    attributes |= {"linear_before_reset": 1} if op == "gru" else {}
    attributes |= {"activations": [("relu",)] * count} if name == "rnn_relu" else {}
    attributes["direction"] = "bidirectional" if bidirectional else "forward"
    if batch_first:
        x = graph.transpose(x, (1, 0, 2))
    states = [hx] if isinstance(hx, str) else [*hx]
    hidden = graph.shape(states[0])[-1]
    ends: list[list[str]] = [[] for _ in states]
    each_direction = 2 + 2 * has_biases
    for layer in range(num_layers):
        firsts = [each_direction * (count * layer + at) for at in range(count)]
        weights = [params[at : at + each_direction] for at in firsts]
        inputs = [x, *_stack_weights(call, weights, has_biases), ""]
        inputs += [_slice_rows(call, state, layer * count, count) for state in states]
        steps, batch, _ = graph.shape(x)
        types: list[tuple[Sequence[int], str]] = [((steps, count, batch, hidden), call.dtype)]
        types += [((count, batch, hidden), call.dtype)] * len(states)
        y, *last = graph.add_many(op, inputs, types, hidden_size=hidden, **attributes)
        if count > 1:
            y = graph.transpose(y, (0, 2, 1, 3))
        x = graph.reshape(y, (steps, batch, count * hidden))
        for end, state in zip(ends, last, strict=True):
            end.append(state)
    whole = [graph.shape(state) for state in states]
    joined = [
        call.add("concat", *end, shape=shape, axis=0) if num_layers > 1 else end[0]
        for end, shape in zip(ends, whole, strict=True)
    ]
    return (graph.transpose(x, (1, 0, 2)) if batch_first else x, *joined)


def _stack_weights(
    call: AtenCall, directions: Sequence[Sequence[str]], has_biases: bool
) -> list[str]:
    """Return W, R and both biases, behind an axis of directions."""

    def stack(names: Sequence[str]) -> Array:
        values = [value for name in names if (value := call.graph.constant_value(name)) is not None]
        if len(values) < len(names):
            call.refuse("weights that are no constants")
        return np.stack(values)

    parts = [stack(names) for names in zip(*directions, strict=True)]
    biases = [np.concatenate(parts[2:], 1)] if has_biases else []
    names = [call.graph.constant(part) for part in (*parts[:2], *biases)]
    return names if has_biases else [*names, ""]


def _slice_rows(call: AtenCall, state: str, first: int, count: int) -> str:
    """Return the states of a layer; none where all are 0."""
    value = call.graph.constant_value(state)
    if value is not None and not value.any():
        return ""
    rows, *rest = call.graph.shape(state)
    if rows == count:
        return state
    ends = [call.whole([number]) for number in (first, first + count, 0)]
    return call.graph.add("slice", (state, *ends), (count, *rest), call.dtype)


_MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear",
          "bicubic": "cubic"}  # fmt: skip
_UPSAMPLES = {
    **{f"upsample_nearest{axes}d": ("nearest", "asymmetric") for axes in (1, 2, 3)},
    **{
        f"upsample_{mode}{axes}d": (_MODES[mode], "pytorch_half_pixel")
        for mode, axes in (("linear", 1), ("bilinear", 2), ("trilinear", 3))
    },
    "upsample_bicubic2d": ("cubic", "half_pixel"),
}
RULES: AtenRules = MappingProxyType(
    {
        "linear": linear,
        "addmm": addmm,
        **dict.fromkeys(("mm", "bmm", "matmul", "mv"), product),
        "baddbmm": baddbmm,
        "einsum": einsum,
        "scaled_dot_product_attention": attention,
        "convolution": convolution,
        **{f"conv{axes}d": partial(convolve, "conv") for axes in (1, 2, 3)},
        **{f"conv_transpose{axes}d": partial(convolve, "conv_transpose") for axes in (1, 2, 3)},
        **{f"max_pool{axes}d": partial(pool, "max_pool", axes) for axes in (1, 2, 3)},
        **{f"max_pool{axes}d_with_indices": partial(pool, "max_pool", axes) for axes in (2, 3)},
        **{f"avg_pool{axes}d": partial(pool, "average_pool", axes) for axes in (1, 2, 3)},
        **{f"{prefix}adaptive_avg_pool{axes}d": partial(adaptive_pool, "average_pool", axes)
           for axes in (1, 2, 3) for prefix in ("", "_")},
        **{f"adaptive_max_pool{axes}d": partial(adaptive_pool, "max_pool", axes)
           for axes in (1, 2, 3)},
        **{name: partial(upsample, *row) for name, row in _UPSAMPLES.items()},
        "grid_sampler_2d": grid_sampler,
        **{name: partial(recurrent, name) for name in _CELLS},
    }
)  # fmt: skip
