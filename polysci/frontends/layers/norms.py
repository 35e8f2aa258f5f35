"""Layers that normalise, with PyTorch's parameters and running statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from polysci.errors import SpecError
from polysci.frontends.layers.fields import CheckedLayer, Extents
from polysci.frontends.layers.model import LayerGraph, check_axes, check_extent


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

    def normalise(self, graph: LayerGraph, x: str, name: str) -> str:
        shape = graph.shape(x)
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

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        check_axes(graph, x, 2, 3)
        return self.normalise(graph, x, name)


@dataclass(frozen=True, slots=True)
class BatchNorm2dLayer(_BatchNorm):
    """Batch normalisation of (images, channels, height, width)."""

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        check_axes(graph, x, 4)
        return self.normalise(graph, x, name)


@dataclass(frozen=True, slots=True)
class _LastAxes(CheckedLayer):
    """A normalisation over the last axes."""

    normalized_shape: Extents

    def extents(self, graph: LayerGraph, x: str) -> tuple[int, ...]:
        """Return the last axes of x."""
        value = self.normalized_shape
        shape = (value,) if isinstance(value, int) else tuple(value)
        if not shape or graph.shape(x)[-len(shape) :] != shape:
            raise SpecError(f"normalized_shape={list(shape)} for x {list(graph.shape(x))}")
        return shape


@dataclass(frozen=True, slots=True)
class LayerNormLayer(_LastAxes):
    """Normalisation to a mean of 0 and a variance of 1 over the last axes."""

    eps: float = 1e-5

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        shape = self.extents(graph, x)
        inputs = (x, *_scale_and_shift(graph, name, shape))
        words: dict[str, Any] = {"axis": -len(shape), "epsilon": self.eps}
        return graph.add("layer_norm", inputs, graph.shape(x), **words)


@dataclass(frozen=True, slots=True)
class RMSNormLayer(_LastAxes):
    """Normalisation to a mean square of 1 over the last axes."""

    eps: float = 1.1920928955078125e-07  # of f32, as in PyTorch

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        shape = self.extents(graph, x)
        inputs = (x, graph.parameter(f"{name}.weight", np.ones(shape)))
        words: dict[str, Any] = {"axis": -len(shape), "epsilon": self.eps}
        return graph.add("rms_norm", inputs, graph.shape(x), **words)


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
        words: dict[str, Any] = {"num_groups": self.num_groups, "epsilon": self.eps}
        return graph.add("group_norm", inputs, shape, **words)
