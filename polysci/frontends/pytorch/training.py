"""Calls of programs that learn: statistics of a batch, and gradients by the graph's own rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.frontends.pytorch.call import AtenCall, AtenRules, per_axis
from polysci.frontends.pytorch.elementwise import formula
from polysci.frontends.pytorch.layers import (
    convolution_attributes,
    multiply_along,
    pool_attributes,
    shares_of_windows,
)
from polysci.frontends.pytorch.reductions import batch_norm, group_norm, scale_and_shift
from polysci.graph.builder import Backward
from polysci.graph.formulas import derive
from polysci.graph.graph import AVERAGE_POOL_GRADIENT, MAX_POOL_GRADIENT, Node
from polysci.graph.operators.convolution import conv_transpose_gradient, convolution_gradient
from polysci.graph.operators.normalisation import Normalised, statistics_gradient
from polysci.graph.operators.softmax import softmax_gradient
from polysci.numerics.formulas import gradient_text
from polysci.numerics.scalar_functions import FUNCTIONS

MAX_POOL_BACKWARD = "polysci::max_pool_backward"  # an operator of polysci.torch: no places
# Function of PyTorch -> that of the table whose derivative its backward pass is.
_FUNCTIONS = MappingProxyType(
    {"silu": "silu"}
    | {row.torch: name for name, row in FUNCTIONS.items() if row.torch and not row.parameters}
)


def _backward(call: AtenCall, *wanted: str) -> Backward:
    """Let gradient rules add nodes to the graph, for gradients of the wanted tensors."""
    grows = call.graph
    return Backward(
        grows.graph, grows.nodes, grows.constants, grows.tensors, grows.scalars,
        wanted=frozenset(wanted),
    )  # fmt: skip


def gelu_backward(call: AtenCall, grad_output: str, x: str, approximate: str = "none") -> str:
    return function_backward("gelu_tanh" if approximate == "tanh" else "gelu", call, grad_output, x)


def function_backward(
    function: str, call: AtenCall, grad_output: str, x: str = "", output: str = ""
) -> str:
    """Apply the derivative of a scalar function of x, or of its output."""
    return formula(gradient_text(function), call, x=x, y=output, dy=grad_output)


def softmax_backward(
    op: str, call: AtenCall, grad_output: str, output: str, dim: int, **_: Any
) -> str:
    node = Node(op, ("",), (output,), MappingProxyType({"axis": call.axis(dim)}))
    return softmax_gradient(_backward(call), node, [grad_output])[0]


def convolution_backward(
    call: AtenCall, grad_output: str, x: str, weight: str, bias_sizes: Sequence[int] | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, output_mask: Sequence[bool],
) -> Sequence[str]:  # fmt: skip
    """Return the gradients of x, weight and bias that are asked for."""
    taps = call.graph.shape(weight)[2:]
    attributes = convolution_attributes(taps, stride, padding, dilation, groups)
    op, inputs = "conv_transpose" if transposed else "conv", (x, weight, "bias")
    wanted = [name for name, asked in zip(inputs, output_mask, strict=True) if asked]
    node = Node(op, inputs, (grad_output,), MappingProxyType(attributes))
    rule = conv_transpose_gradient if transposed else convolution_gradient
    return rule(_backward(call, *wanted), node, [grad_output])


def max_pool_backward(
    call: AtenCall, grad_output: str, x: str, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool,
) -> str:  # fmt: skip
    """Return gradients to the first of the largest elements of each window."""
    axes = len(kernel_size)
    attributes = pool_attributes(axes, kernel_size, stride, padding, ceil_mode)
    attributes["dilations"] = per_axis(dilation, axes)
    return _pool_gradient(call, MAX_POOL_GRADIENT, axes, [grad_output, x], **attributes)


def average_pool_backward(
    axes: int, call: AtenCall, grad_output: str, x: str, kernel_size: Sequence[int],
    stride: Sequence[int], padding: Sequence[int], ceil_mode: bool, count_include_pad: bool,
    divisor_override: int | None,
) -> str:  # fmt: skip
    if divisor_override:
        call.refuse(f"divisor_override {divisor_override}")
    attributes = pool_attributes(axes, kernel_size, stride, padding, ceil_mode)
    attributes["count_include_pad"] = int(count_include_pad)
    return _pool_gradient(call, AVERAGE_POOL_GRADIENT, axes, [grad_output], **attributes)


def adaptive_average_backward(axes: int, call: AtenCall, grad_output: str, x: str) -> str:
    """Return the gradient of a mean over windows of about the same size."""
    after, before = call.shape[-axes:], call.graph.shape(grad_output)[-axes:]
    if not any(a % b for a, b in zip(after, before, strict=True)):
        taps = [a // b for a, b in zip(after, before, strict=True)]
        attributes = pool_attributes(axes, taps, (), (0,), False)
        return _pool_gradient(call, AVERAGE_POOL_GRADIENT, axes, [grad_output], **attributes)
    for at, (size, windows) in enumerate(zip(after, before, strict=True)):
        grad_output = multiply_along(
            call, grad_output, at - axes, shares_of_windows(size, windows).T
        )
    return grad_output


def _pool_gradient(
    call: AtenCall, op: str, axes: int, inputs: Sequence[str], **attributes: Any
) -> str:
    """Add a gradient of pools; one image without an axis of images gets one."""
    lead = [1] if len(call.shape) == axes + 1 else []
    images = [call.graph.reshape(name, (*lead, *call.graph.shape(name))) for name in inputs]
    return call.reshape(call.add(op, *images, shape=(*lead, *call.shape), **attributes))


def batch_norm_training(
    call: AtenCall, x: str, weight: str | None, bias: str | None, running_mean: str | None = None,
    running_var: str | None = None, training: bool = True, momentum: float = 0.1,
    eps: float = 1e-5,
) -> Sequence[str]:  # fmt: skip
    """Return y, the mean, ``1 / sqrt(variance + eps)``, and running statistics if there are any.

    Running variances are those of a sample: their sums are divided by one element less.
    """
    graph, channels = call.graph, call.shape[1:2]
    if not training:
        y, *_ = batch_norm(call, x, weight, bias, running_mean, running_var, momentum, eps)
        return (y, "", "", running_mean or "", running_var or "")
    count = prod(call.shape) // channels[0]
    scale, shift = scale_and_shift(call, weight, bias, channels)
    zeros = graph.constant(np.zeros(channels, call.dtype))
    inputs = (x, scale, shift, running_mean or zeros, running_var or zeros)
    y, mean, variance = graph.add_many(
        "batch_norm", inputs, [(call.shape, call.dtype), *[(channels, call.dtype)] * 2],
        epsilon=eps, momentum=0.0, training_mode=1,
    )  # fmt: skip
    results = [y, mean, derive(graph, "1 / sqrt(v + e)", v=variance, e=eps)]
    for old, new, share in (
        (running_mean, mean, momentum),
        (running_var, variance, momentum * count / max(1, count - 1)),
    ):
        if old is not None:
            text = "old * kept + new * share"
            results.append(derive(graph, text, old=old, new=new, kept=1 - momentum, share=share))
    return results


def batch_norm_backward(
    call: AtenCall, grad_out: str, x: str, weight: str | None, running_mean: str | None,
    running_var: str | None, save_mean: str | None, save_invstd: str | None, train: bool,
    eps: float, output_mask: Sequence[bool],
) -> Sequence[str]:  # fmt: skip
    back, shape = _backward(call), call.graph.shape(x)
    wide, channels = (shape[1], *[1] * (len(shape) - 2)), shape[1:2]
    scale, _ = scale_and_shift(call, weight, None, channels)
    mean, inverse = save_mean, save_invstd
    if not train:
        assert running_var is not None
        mean, inverse = running_mean, derive(back, "1 / sqrt(v + e)", v=running_var, e=eps)
    g, s, m = (back.reshape(name or "", wide) for name in (scale, inverse, mean))
    normal = Normalised(x, g, s, tuple(at for at in range(len(shape)) if at != 1), m)
    gradients = normal.gradients if train else normal.known_gradients
    dx, *others = gradients(back, grad_out, wide)
    return [dx, *(back.reshape(name, channels) for name in others)]


def layer_norm_backward(
    call: AtenCall, grad_out: str, x: str, normalized_shape: Sequence[int], mean: str, rstd: str,
    weight: str | None, bias: str | None, output_mask: Sequence[bool],
) -> Sequence[str]:  # fmt: skip
    scale, _ = scale_and_shift(call, weight, None, normalized_shape)
    rank = len(call.graph.shape(x))
    axes = tuple(range(rank - len(normalized_shape), rank))
    return Normalised(x, scale, rstd, axes, mean).gradients(
        _backward(call), grad_out, normalized_shape
    )


def group_norm_training(
    call: AtenCall, x: str, weight: str | None, bias: str | None, group: int, eps: float, **_: Any
) -> Sequence[str]:
    """Return y, means and ``1 / sqrt(variance + eps)`` of every image's groups."""
    graph, shape = call.graph, call.shape
    y = group_norm(call, x, group, weight, bias, eps)
    grouped = graph.reshape(x, (shape[0], group, prod(shape[1:]) // group))
    pair = statistics_gradient(graph, grouped, (2,), eps)
    return [y, *(graph.reshape(name, (shape[0], group)) for name in pair)]


def group_norm_backward(
    call: AtenCall, grad_out: str, x: str, mean: str, rstd: str, weight: str | None, group: int,
    **_: Any,
) -> Sequence[str]:  # fmt: skip
    back, shape = _backward(call), call.graph.shape(x)
    scale = scale_and_shift(call, weight, None, shape[1:2])[0]
    wide = (shape[0], group, shape[1] // group, prod(shape[2:]))
    vector, ones = wide[1:3], (shape[0], group, 1, 1)
    normal = Normalised(
        back.reshape(x, wide), back.reshape(scale, (*vector, 1)), back.reshape(rstd, ones),
        (2, 3), back.reshape(mean, ones),
    )  # fmt: skip
    dx, *others = normal.gradients(back, back.reshape(grad_out, wide), (*vector, 1))
    return [back.reshape(dx, shape), *(back.reshape(name, shape[1:2]) for name in others)]


def embedding_backward(
    call: AtenCall, grad_output: str, indices: str, num_weights: int, padding_idx: int,
    scale_grad_by_freq: bool,
) -> str:  # fmt: skip
    """Sum the rows of each word; that of ``padding_idx`` is 0."""
    if scale_grad_by_freq:
        call.refuse("scale_grad_by_freq")
    graph, count = call.graph, prod(call.graph.shape(indices))
    rows = graph.reshape(grad_output, (count, call.shape[1]))
    places = graph.reshape(call.cast(indices, "int64"), (count, 1))
    if padding_idx >= 0:
        rows = derive(graph, "select(i == p, 0, dy)", i=places, p=padding_idx, dy=rows)
    zeros = graph.expand(graph.number(0.0, call.dtype), call.shape)
    return call.add("scatter_nd", zeros, places, rows, reduction="add")


RULES: AtenRules = MappingProxyType(
    {
        "threshold_backward": partial(formula, "select(x > threshold, grad_output, 0)"),
        **{
            f"{name}_backward": partial(function_backward, function)
            for name, function in _FUNCTIONS.items()
        },
        "gelu_backward": gelu_backward,
        "_softmax_backward_data": partial(softmax_backward, "softmax"),
        "_log_softmax_backward_data": partial(softmax_backward, "log_softmax"),
        "convolution_backward": convolution_backward,
        MAX_POOL_BACKWARD: max_pool_backward,
        **{f"avg_pool{axes}d_backward": partial(average_pool_backward, axes) for axes in (2, 3)},
        **{f"_adaptive_avg_pool{axes}d_backward": partial(adaptive_average_backward, axes)
           for axes in (2, 3)},
        **dict.fromkeys(
            ("_native_batch_norm_legit_functional", "_native_batch_norm_legit"), batch_norm_training
        ),
        "native_batch_norm_backward": batch_norm_backward,
        "native_layer_norm_backward": layer_norm_backward,
        "native_group_norm": group_norm_training,
        "native_group_norm_backward": group_norm_backward,
        "embedding_dense_backward": embedding_backward,
    }
)  # fmt: skip
