"""Layers without weights: functions of elements, shapes, pools, layers beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.border.arguments import check_type
from polysci.errors import SpecError
from polysci.frontends.layers.fields import CheckedLayer, Extents, check_number
from polysci.frontends.layers.model import (
    Layer,
    LayerGraph,
    check_axes,
    extend_all,
    per_axis,
)
from polysci.graph.graph import DROPOUT_MASK

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
        words = {"ratio": self.p, "key": stream * 0x85EBCA6B}
        mask = graph.add(DROPOUT_MASK, (DROPOUT_COUNTER,), shape, "bool", **words)
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

    def pool(self, graph: LayerGraph, x: str, op: str, **words: Any) -> str:
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
            pads=list(pads * 2), **words,
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
        words: dict[str, Any] = {"count_include_pad": int(self.count_include_pad)}
        return self.pool(graph, x, "average_pool", **words)


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
        made = extend_all(graph, self.layers, x, f"{name}.")
        if graph.shape(made) != graph.shape(beside):
            shapes = f"{list(graph.shape(made))} and {list(graph.shape(beside))}"
            raise SpecError(f"shapes {shapes} cannot be added")
        return graph.add("add", (made, beside), graph.shape(made))
