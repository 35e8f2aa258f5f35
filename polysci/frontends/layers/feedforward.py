"""Feed-forward layers: linear ones, convolutions, norms, pools and functions of elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from polysci.border.arguments import check_type
from polysci.errors import SpecError
from polysci.frontends.layers.model import (
    CheckedLayer,
    Extents,
    Layer,
    LayerGraph,
    Shape,
    check_axes,
    check_extent,
    check_number,
    extend_all,
    per_axis,
)
from polysci.graph.graph import DROPOUT_MASK


@dataclass(frozen=True, slots=True)
class LinearLayer(CheckedLayer):
    """``y = x @ weight' + bias`` over the last axis; weight (out_features, in_features)."""

    in_features: int
    out_features: int
    bias: bool = True

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        *rows, columns = graph.shape(x)
        check_extent("in_features", self.in_features, columns)
        shape = (self.out_features, self.in_features)
        inputs = [
            graph.reshape(x, (prod(rows), columns)),
            graph.uniform(f"{name}.weight", shape, self.in_features),
        ]
        if self.bias:
            inputs.append(graph.uniform(f"{name}.bias", shape[:1], self.in_features))
        y = graph.add("gemm", inputs, (prod(rows), self.out_features), transpose_b=1)
        return graph.reshape(y, (*rows, self.out_features))


@dataclass(frozen=True, slots=True)
class _Windowed(CheckedLayer):
    """The fields and the arithmetic of all convolutions."""

    in_channels: int
    out_channels: int
    kernel_size: Extents
    stride: Extents = 1
    padding: Extents = 0
    dilation: Extents = 1
    groups: int = 1
    bias: bool = True
    AXES: ClassVar[int] = 2

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        shape = check_axes(graph, x, self.AXES + 2)
        taps, strides, pads, dilations = self._windows(graph, shape, self.AXES)
        weight = (self.out_channels, self.in_channels // self.groups, *taps)
        inputs = [x, *self._parameters(graph, name, weight)]
        spans = zip(shape[2:], taps, strides, pads, dilations, strict=True)
        sizes = [(size + 2 * p - d * (t - 1) - 1) // s + 1 for size, t, s, p, d in spans]
        if min(sizes) < 1:
            raise SpecError(f"the window is larger than x {list(shape)} with its padding")
        return graph.add(
            "conv", inputs, (shape[0], self.out_channels, *sizes), kernel_shape=list(taps),
            strides=list(strides), pads=list(pads * 2), dilations=list(dilations),
            group=self.groups,
        )  # fmt: skip

    def _windows(self, graph: LayerGraph, shape: Shape, axes: int) -> tuple[tuple[int, ...], ...]:
        check_extent("in_channels", self.in_channels, shape[1])
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise SpecError(f"groups={self.groups} divides not both numbers of channels")
        names = ("kernel_size", "stride", "padding", "dilation")
        return tuple(per_axis(getattr(self, name), axes, name) for name in names)

    def _parameters(self, graph: LayerGraph, name: str, shape: Shape) -> list[str]:
        """Add weights of a shape, and a bias if there is one."""
        names, fan = [graph.uniform(f"{name}.weight", shape, prod(shape[1:]))], prod(shape[1:])
        if self.bias:
            names.append(graph.uniform(f"{name}.bias", (self.out_channels,), fan))
        return names


@dataclass(frozen=True, slots=True)
class Conv1dLayer(_Windowed):
    """A convolution of (images, channels, length); weight (out, in / groups, taps)."""

    AXES: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Conv2dLayer(_Windowed):
    """A convolution of (images, channels, height, width); weight (out, in / groups, R, S)."""


@dataclass(frozen=True, slots=True)
class ConvTranspose2dLayer(_Windowed):
    """The transpose of a convolution; weight (in, out / groups, R, S)."""

    output_padding: Extents = 0

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        shape = check_axes(graph, x, 4)
        taps, strides, pads, dilations = self._windows(graph, shape, 2)
        extra = per_axis(self.output_padding, 2, "output_padding")
        if any(more >= max(pair) for more, *pair in zip(extra, strides, dilations, strict=True)):
            raise SpecError(f"output_padding={extra} must be below stride or dilation")
        weight = (self.in_channels, self.out_channels // self.groups, *taps)
        inputs = [x, *self._parameters(graph, name, weight)]
        spans = zip(shape[2:], taps, strides, pads, dilations, extra, strict=True)
        sizes = [(n - 1) * s - 2 * p + d * (t - 1) + e + 1 for n, t, s, p, d, e in spans]
        if min(sizes) < 1:
            raise SpecError(f"padding leaves nothing of x {list(shape)}")
        return graph.add(
            "conv_transpose", inputs, (shape[0], self.out_channels, *sizes),
            kernel_shape=list(taps), strides=list(strides), pads=list(pads * 2),
            dilations=list(dilations), group=self.groups, output_padding=list(extra),
        )  # fmt: skip


def _scale_and_shift(graph: LayerGraph, name: str, shape: Sequence[int]) -> tuple[str, str]:
    """Add the parameters of a normalisation: ones, and zeros."""
    return (
        graph.parameter(f"{name}.weight", np.ones(shape)),
        graph.parameter(f"{name}.bias", np.zeros(shape)),
    )


@dataclass(frozen=True, slots=True)
class _BatchNorm(CheckedLayer):
    """Normalisation over images and pixels; by running statistics where nothing is learned."""

    num_features: int
    eps: float = 1e-5
    momentum: float = 0.1
    RANKS: ClassVar[tuple[int, ...]] = (4,)

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        shape = check_axes(graph, x, *self.RANKS)
        check_extent("num_features", self.num_features, shape[1])
        scale, shift = _scale_and_shift(graph, name, shape[1:2])
        mean, variance = (
            graph.keep(f"{name}.running_{word}", np.full(shape[1], value, np.float32))
            for word, value in (("mean", 0), ("var", 1))
        )
        inputs = (x, scale, shift, mean, variance)
        if not graph.training:
            return graph.add("batch_norm", inputs, shape, epsilon=self.eps)
        vector, count = (shape[1:2], "float32"), prod(shape) // shape[1]
        if count < 2:
            raise SpecError(f"x {list(shape)}: expected more than one value a channel in training")
        y, *statistics = graph.add_many(
            "batch_norm", inputs, [(shape, "float32"), vector, vector],
            epsilon=self.eps, momentum=0.0, training_mode=1,
        )  # fmt: skip
        shares = (self.momentum, self.momentum * count / (count - 1))  # unbiased variances
        for old, new, share in zip((mean, variance), statistics, shares, strict=True):
            parts = [
                graph.add("mul", (part, graph.number(factor)), shape[1:2])
                for part, factor in ((old, 1 - self.momentum), (new, share))
            ]
            graph.replaced[old] = graph.add("add", parts, shape[1:2])
        return y


@dataclass(frozen=True, slots=True)
class BatchNorm1dLayer(_BatchNorm):
    """Batch normalisation of (images, channels) or (images, channels, length)."""

    RANKS: ClassVar[tuple[int, ...]] = (2, 3)


@dataclass(frozen=True, slots=True)
class BatchNorm2dLayer(_BatchNorm):
    """Batch normalisation of (images, channels, height, width)."""


@dataclass(frozen=True, slots=True)
class _LastAxes(CheckedLayer):
    """A normalisation over the last axes."""

    normalized_shape: Extents

    def normalise(self, graph: LayerGraph, op: str, x: str, name: str, eps: float) -> str:
        """Add a normalisation over the last axes of x."""
        value = self.normalized_shape
        shape = (value,) if isinstance(value, int) else tuple(value)
        if not shape or graph.shape(x)[-len(shape) :] != shape:
            raise SpecError(f"normalized_shape={list(shape)} for x {list(graph.shape(x))}")
        inputs = [x, graph.parameter(f"{name}.weight", np.ones(shape))]
        if op == "layer_norm":
            inputs.append(graph.parameter(f"{name}.bias", np.zeros(shape)))
        return graph.add(op, inputs, graph.shape(x), axis=-len(shape), epsilon=eps)


@dataclass(frozen=True, slots=True)
class LayerNormLayer(_LastAxes):
    """Normalisation to a mean of 0 and a variance of 1 over the last axes."""

    eps: float = 1e-5

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        return self.normalise(graph, "layer_norm", x, name, self.eps)


@dataclass(frozen=True, slots=True)
class RMSNormLayer(_LastAxes):
    """Normalisation to a mean square of 1 over the last axes."""

    eps: float = 1.1920928955078125e-07  # of f32, as in PyTorch

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        return self.normalise(graph, "rms_norm", x, name, self.eps)


@dataclass(frozen=True, slots=True)
class GroupNormLayer(CheckedLayer):
    """Normalisation to a mean of 0 and a variance of 1 over groups of channels."""

    num_groups: int
    num_channels: int
    eps: float = 1e-5

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        shape = graph.shape(x)
        check_extent("num_channels", self.num_channels, shape[1])
        if self.num_channels % self.num_groups:
            raise SpecError(f"num_groups={self.num_groups} of {self.num_channels} channels")
        inputs = (x, *_scale_and_shift(graph, name, shape[1:2]))
        return graph.add("group_norm", inputs, shape, num_groups=self.num_groups, epsilon=self.eps)


DROPOUT_COUNTER = "dropout.counter"  # state: a seed, and the number of the step


@dataclass(frozen=True, slots=True)
class FunctionLayer:
    """An operator that treats every element alike."""

    op: str
    attributes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        return graph.add(self.op, (x,), graph.shape(x), **self.attributes)


ReLU, Sigmoid, Tanh, SiLU, Mish, Softplus, Hardswish = (
    partial(FunctionLayer, op)
    for op in ("relu", "sigmoid", "tanh", "swish", "mish", "softplus", "hard_swish")
)


def GELU(approximate: str = "none") -> FunctionLayer:
    """Return a layer ``x * P(X <= x)`` of a normal X; ``approximate`` by tanh. Raises SpecError."""
    check_type("GELU: approximate", approximate, str)
    if approximate not in ("none", "tanh"):
        raise SpecError(f"GELU: approximate={approximate!r:.40}: expected 'none' or 'tanh'")
    return FunctionLayer("gelu", MappingProxyType({"approximate": approximate}))


def LeakyReLU(negative_slope: float = 0.01) -> FunctionLayer:
    """Return a layer that multiplies negative x with a slope. Raises TypeError or SpecError."""
    check_number("LeakyReLU: negative_slope", negative_slope)
    return FunctionLayer("leaky", MappingProxyType({"alpha": negative_slope}))


def ELU(alpha: float = 1.0) -> FunctionLayer:
    """Return a layer of x, ``alpha * (exp(x) - 1)`` below 0. Raises TypeError or SpecError."""
    check_number("ELU: alpha", alpha)
    return FunctionLayer("elu", MappingProxyType({"alpha": alpha}))


@dataclass(frozen=True, slots=True)
class SoftmaxLayer(CheckedLayer):
    """Shares along an axis."""

    dim: int = -1

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        return graph.add("softmax", (x,), graph.shape(x), axis=self.dim)


@dataclass(frozen=True, slots=True)
class DropoutLayer(CheckedLayer):
    """While a model learns, zeros at random; the rest is scaled by ``1 / (1 - p)``."""

    p: float = 0.5

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        if not graph.training or not self.p:
            return x
        shape = graph.shape(x)
        if DROPOUT_COUNTER not in graph.state:
            seed = graph.random.integers(1 << 32)
            counter = graph.keep(DROPOUT_COUNTER, np.array([seed, 0], np.int64))
            one = graph.constant(np.array([0, 1], np.int64))
            graph.replaced[counter] = graph.add("add", (counter, one), (2,), "int64")
        stream = sum(node.op == DROPOUT_MASK for node in graph.nodes)
        mask = graph.add(
            DROPOUT_MASK, (DROPOUT_COUNTER,), shape, "bool", ratio=self.p, key=stream * 0x85EBCA6B
        )
        scaled = graph.add("mul", (x, graph.number(1 / (1 - self.p))), shape)
        return graph.add("select", (mask, scaled, graph.number(0.0)), shape)


@dataclass(frozen=True, slots=True)
class FlattenLayer(CheckedLayer):
    """Axes from one on up to another as one."""

    start_dim: int = 1
    end_dim: int = -1

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        shape = graph.shape(x)
        if not all(-len(shape) <= at < len(shape) for at in (self.start_dim, self.end_dim)):
            raise SpecError(f"x {list(shape)} has no such axes")
        first, last = (at % len(shape) for at in (self.start_dim, self.end_dim))
        if first > last:
            raise SpecError(f"axes {first} to {last} of {list(shape)}")
        middle = prod(shape[first : last + 1])
        return graph.reshape(x, (*shape[:first], middle, *shape[last + 1 :]))


@dataclass(frozen=True, slots=True)
class _Pool(CheckedLayer):
    """A pool over windows of two axes."""

    kernel_size: Extents
    stride: Extents | None = None
    padding: Extents = 0

    def pool(self, graph: LayerGraph, x: str, op: str, **attributes: Any) -> str:
        """Add an operator over windows."""
        shape = check_axes(graph, x, 4)
        taps = per_axis(self.kernel_size, 2, "kernel_size")
        strides = per_axis(self.kernel_size if self.stride is None else self.stride, 2, "stride")
        pads = per_axis(self.padding, 2, "padding")
        spans = zip(shape[2:], taps, strides, pads, strict=True)
        sizes = [(size + 2 * p - t) // s + 1 for size, t, s, p in spans]
        if min(sizes) < 1 or any(2 * p > t for p, t in zip(pads, taps, strict=True)):
            raise SpecError(f"windows {taps} with padding {pads} do not fit x {list(shape)}")
        return graph.add(
            op, (x,), (*shape[:2], *sizes), kernel_shape=list(taps), strides=list(strides),
            pads=list(pads * 2), **attributes,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class MaxPool2dLayer(_Pool):
    """The largest element of each window."""

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        return self.pool(graph, x, "max_pool")


@dataclass(frozen=True, slots=True)
class AvgPool2dLayer(_Pool):
    """The mean of each window, of its padding as well where ``count_include_pad`` says so."""

    count_include_pad: bool = True

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        included = int(self.count_include_pad)
        return self.pool(graph, x, "average_pool", count_include_pad=included)


@dataclass(frozen=True, slots=True)
class AdaptiveAvgPool2dLayer(CheckedLayer):
    """The mean of each channel of each image."""

    output_size: Extents = 1

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        shape = check_axes(graph, x, 4)
        if per_axis(self.output_size, 2, "output_size") != (1, 1):
            raise SpecError(f"output_size={self.output_size!r:.80}: 1 alone is supported")
        return graph.add("global_average_pool", (x,), (*shape[:2], 1, 1))


@dataclass(frozen=True, slots=True)
class ResidualLayer(CheckedLayer):
    """``x + layers(x)``, or ``shortcut(x) + layers(x)``; names as ``3.0.weight``.

    Those of the shortcut are ``3.shortcut.0.weight``.
    """

    layers: Sequence[Layer]
    shortcut: Sequence[Layer] = ()

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        beside = extend_all(graph, self.shortcut, x, f"{name}.shortcut.")
        y = extend_all(graph, self.layers, x, f"{name}.")
        if graph.shape(y) != graph.shape(beside):
            shapes = f"{list(graph.shape(y))} and {list(graph.shape(beside))}"
            raise SpecError(f"shapes {shapes} cannot be added")
        return graph.add("add", (y, beside), graph.shape(y))
