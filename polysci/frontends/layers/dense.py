"""Layers with weights: linear ones and convolutions, in PyTorch's layouts."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from polysci.errors import SpecError
from polysci.frontends.layers.fields import CheckedLayer, Extents
from polysci.frontends.layers.model import (
    LayerGraph,
    Shape,
    check_axes,
    check_extent,
    per_axis,
)


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
        y = graph.add("gemm", inputs, (prod(rows), self.out_features), transB=1)
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

    def convolve(self, graph: LayerGraph, x: str, name: str, axes: int) -> str:
        """Add a convolution over the last axes."""
        shape = check_axes(graph, x, axes + 2)
        taps, strides, pads, dilations = self._windows(graph, shape, axes)
        own = self.in_channels // self.groups
        fan = own * prod(taps)
        inputs = [x, graph.uniform(f"{name}.weight", (self.out_channels, own, *taps), fan)]
        if self.bias:
            inputs.append(graph.uniform(f"{name}.bias", (self.out_channels,), fan))
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


@dataclass(frozen=True, slots=True)
class Conv1dLayer(_Windowed):
    """A convolution of (images, channels, length); weight (out, in / groups, taps)."""

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        return self.convolve(graph, x, name, 1)


@dataclass(frozen=True, slots=True)
class Conv2dLayer(_Windowed):
    """A convolution of (images, channels, height, width); weight (out, in / groups, R, S)."""

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        return self.convolve(graph, x, name, 2)


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
        own = self.out_channels // self.groups
        fan = own * prod(taps)
        inputs = [x, graph.uniform(f"{name}.weight", (self.in_channels, own, *taps), fan)]
        if self.bias:
            inputs.append(graph.uniform(f"{name}.bias", (self.out_channels,), fan))
        spans = zip(shape[2:], taps, strides, pads, dilations, extra, strict=True)
        sizes = [(n - 1) * s - 2 * p + d * (t - 1) + e + 1 for n, t, s, p, d, e in spans]
        if min(sizes) < 1:
            raise SpecError(f"padding leaves nothing of x {list(shape)}")
        return graph.add(
            "conv_transpose", inputs, (shape[0], self.out_channels, *sizes),
            kernel_shape=list(taps), strides=list(strides), pads=list(pads * 2),
            dilations=list(dilations), group=self.groups, output_padding=list(extra),
        )  # fmt: skip
