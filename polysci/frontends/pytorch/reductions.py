"""Calls that sum or compare over axes, and normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf, prod
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.frontends.pytorch.call import AtenCall, AtenRules
from polysci.frontends.pytorch.elementwise import formula
from polysci.graph.formulas import derive

Axes = int | Sequence[int] | None


def reduce(op: str, call: AtenCall, x: str, dim: Axes = None, keepdim: bool = False,
           **_: Any) -> str:  # fmt: skip
    """Reduce over some axes, or all, in the result's type."""
    return _reduce_axes(call, op, call.cast(x), call.axes(dim, x))


def _reduce_axes(call: AtenCall, op: str, x: str, axes: Sequence[int]) -> str:
    shape = tuple(1 if at in axes else size for at, size in enumerate(call.graph.shape(x)))
    if not axes:
        return call.reshape(x)
    dtype = call.graph.dtype(x)
    return call.reshape(call.graph.add(op, (x, call.whole(axes)), shape, dtype, keepdims=1))


def extreme(word: str, call: AtenCall, x: str, **arguments: Any) -> Any:
    """Return the extremes of two tensors, of all elements, or along an axis with the places."""
    if "other" in arguments:
        return formula(f"{word}(x, other)", call, x=x, **arguments)
    if len(call.results) == 1:
        return reduce(f"reduce_{word}", call, x)
    values = reduce(f"reduce_{word}", call, x, arguments["dim"])
    second = AtenCall(call.graph, call.results[1:])
    return values, argument(f"arg{word}", second, x, arguments["dim"])


def argument(op: str, call: AtenCall, x: str, dim: int | None = None, keepdim: bool = False) -> str:
    """Return the place of the first largest or smallest element."""
    if dim is None:
        x, dim = call.graph.reshape(x, (prod(call.graph.shape(x)),)), 0
    axis = call.axis(dim, x)
    shape = tuple(1 if at == axis else size for at, size in enumerate(call.graph.shape(x)))
    return call.reshape(call.add(op, x, shape=shape, axis=axis, keepdims=1))


def truth(op: str, call: AtenCall, x: str, dim: Axes = None, keepdim: bool = False) -> str:
    """Tell whether any, or all, are other than 0."""
    flags = call.cast(call.cast(x, "bool"), "int32")
    return call.cast(_reduce_axes(call, op, flags, call.axes(dim, x)))


def variance(
    root: bool, call: AtenCall, x: str, dim: Axes = None, correction: float | None = None,
    keepdim: bool = False, unbiased: bool = True,
) -> Any:  # fmt: skip
    """Return the mean of squares around the mean, less ``correction`` elements."""
    axes = call.axes(dim, x)
    shape = call.graph.shape(x)
    small = tuple(1 if at in axes else size for at, size in enumerate(shape))
    mean = call.graph.add("reduce_mean", (x, call.whole(axes)), small, call.dtype, keepdims=1)
    squares = derive(call.graph, "(d := x - m) * d", x=x, m=mean)
    less = (1.0 if unbiased else 0.0) if correction is None else float(correction)
    count = max(0, prod(shape[at] for at in axes) - less)
    total = _reduce_axes(call, "reduce_sum", squares, axes)
    y = derive(call.graph, "sqrt(s / n)" if root else "s / n", s=total, n=count)
    return y if len(call.results) == 1 else (y, call.reshape(mean))


def norm(
    call: AtenCall, x: str, ord: float = 2, dim: Axes = None, keepdim: bool = False, **_: Any
) -> str:
    x, axes = call.cast(x), call.axes(dim, x)
    if ord in (1, 2):
        return _reduce_axes(call, f"reduce_l{int(ord)}", x, axes)
    if abs(ord) != inf:
        call.refuse(f"norm of order {ord}")
    size = derive(call.graph, "abs(x)", x=x)
    return _reduce_axes(call, "reduce_max" if ord > 0 else "reduce_min", size, axes)


def along(op: str, call: AtenCall, x: str, dim: int, **_: Any) -> str:
    """Add Softmax or LogSoftmax."""
    return call.add(op, call.cast(x), axis=call.axis(dim))


def cumulative(op: str, call: AtenCall, x: str, dim: int, **_: Any) -> str:
    return call.add(op, call.cast(x), call.graph.constant(np.array(call.axis(dim), np.int64)))


def batch_norm(
    call: AtenCall, x: str, weight: str | None, bias: str | None, running_mean: str | None,
    running_var: str | None, momentum: float, eps: float, training: bool = False, **_: Any,
) -> Any:  # fmt: skip
    if training or running_mean is None or running_var is None:
        call.refuse("statistics of the batch; call eval() on the module first")
    channels = call.shape[1:2]
    scale, shift = scale_and_shift(call, weight, bias, channels)
    y = call.add("batch_norm", x, scale, shift, running_mean, running_var, epsilon=eps)
    return _with_empty(call, y)


def scale_and_shift(
    call: AtenCall, weight: str | None, bias: str | None, shape: Sequence[int]
) -> tuple[str, str]:
    """Return both, or 1 and 0 for each of as many channels."""
    ones = np.ones(tuple(shape), call.dtype)
    return weight or call.graph.constant(ones), bias or call.graph.constant(0 * ones)


def _with_empty(call: AtenCall, y: str) -> Any:
    """Return y, and results for training alone, which are empty of batch norm in inference."""
    others = [
        "" if result.size else call.graph.constant(np.zeros(result.shape, result.dtype))
        for result in call.results[1:]
    ]
    return (y, *others) if others else y


def layer_norm(
    call: AtenCall, x: str, normalized_shape: Sequence[int], weight: str | None = None,
    bias: str | None = None, eps: float = 1e-5, **_: Any,
) -> Any:  # fmt: skip
    scale, shift = scale_and_shift(call, weight, bias, normalized_shape)
    axis = -len(normalized_shape)
    results = call.add_all("layer_norm", x, scale, shift, axis=axis, epsilon=eps)
    return results[0] if len(results) == 1 else results


def rms_norm(
    call: AtenCall, x: str, normalized_shape: Sequence[int], weight: str | None = None,
    eps: float | None = None,
) -> Any:  # fmt: skip
    scale, _ = scale_and_shift(call, weight, None, normalized_shape)
    epsilon = float(np.finfo(call.dtype).eps) if eps is None else eps
    axis = -len(normalized_shape)
    return _with_empty(call, call.add("rms_norm", x, scale, axis=axis, epsilon=epsilon))


def group_norm(
    call: AtenCall, x: str, num_groups: int, weight: str | None = None, bias: str | None = None,
    eps: float = 1e-5, **_: Any,
) -> str:  # fmt: skip
    scale, shift = scale_and_shift(call, weight, bias, call.shape[1:2])
    return call.add("group_norm", x, scale, shift, num_groups=num_groups, epsilon=eps)


def instance_norm(
    call: AtenCall, x: str, weight: str | None, bias: str | None, running_mean: str | None,
    running_var: str | None, use_input_stats: bool, momentum: float, eps: float,
    cudnn_enabled: bool,
) -> str:  # fmt: skip
    if not use_input_stats:
        return str(batch_norm(call, x, weight, bias, running_mean, running_var, momentum, eps))
    scale, shift = scale_and_shift(call, weight, bias, call.shape[1:2])
    return call.add("instance_norm", x, scale, shift, epsilon=eps)


RULES: AtenRules = MappingProxyType(
    {
        **{name: partial(reduce, f"reduce_{op}") for name, op in (
            ("sum", "sum"), ("mean", "mean"), ("prod", "prod"), ("amax", "max"), ("amin", "min"),
            ("logsumexp", "log_sum_exp"),
        )},
        "max": partial(extreme, "max"),
        "min": partial(extreme, "min"),
        "argmax": partial(argument, "argmax"),
        "argmin": partial(argument, "argmin"),
        "any": partial(truth, "reduce_max"),
        "all": partial(truth, "reduce_min"),
        **dict.fromkeys(("var", "var_mean"), partial(variance, False)),
        "std": partial(variance, True),
        "linalg_vector_norm": norm,
        **dict.fromkeys(("softmax", "_softmax"), partial(along, "softmax")),
        **dict.fromkeys(("log_softmax", "_log_softmax"), partial(along, "log_softmax")),
        "cumsum": partial(cumulative, "cumsum"),
        "cumprod": partial(cumulative, "cumprod"),
        **dict.fromkeys(
            ("batch_norm", "_native_batch_norm_legit_no_training", "native_batch_norm"), batch_norm
        ),
        **dict.fromkeys(("layer_norm", "native_layer_norm"), layer_norm),
        **dict.fromkeys(("rms_norm", "_fused_rms_norm"), rms_norm),
        "group_norm": group_norm,
        "instance_norm": instance_norm,
    }
)  # fmt: skip
