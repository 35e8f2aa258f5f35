"""Shapes of results: those that ONNX's inference leaves open or gets wrong, and broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NoReturn

import numpy as np

from polysci.graph.graph import Node, Tensor
from polysci.numerics.arrays import Array


class ShapeError(ValueError):
    """Inputs of a node that contradict each other."""


@dataclass(frozen=True, slots=True)
class Inference:
    """A node, its inputs, of which some have known values, and its results as far as known."""

    node: Node
    inputs: Sequence[Tensor | None]
    values: Sequence[Array | None]
    results: Sequence[Tensor | None]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first input."""
        return self.input(0).shape

    def input(self, position: int) -> Tensor:
        tensor = self.inputs[position]
        assert tensor is not None
        return tensor

    def value(self, position: int) -> Array | None:
        """The value of an input that is there and known ahead."""
        return self.values[position] if position < len(self.values) else None

    def first(self, shape: Sequence[int], dtype: str = "") -> Sequence[Tensor | None]:
        """The results, the first of a shape and, by default, of the first input's type."""
        kind = dtype or self.input(0).dtype
        tensor = Tensor(self.node.outputs[0], tuple(map(int, shape)), kind)
        return (tensor, *self.results[1:])

    def refuse(self, reason: str) -> NoReturn:
        raise ShapeError(reason)


def broadcast(of: Inference, dtype: str = "") -> Sequence[Tensor | None]:
    """The shape to which all inputs broadcast, where none is inferred."""
    tensors = [tensor for tensor in of.inputs if tensor is not None]
    if of.results[0] is not None:
        return of.results
    try:
        shape = np.broadcast_shapes(*(tensor.shape for tensor in tensors))
    except ValueError:  # the operator names them
        return of.results
    return of.first(shape, dtype)


def keep_count(of: Inference) -> Sequence[Tensor | None]:
    """A Reshape keeps all elements."""
    before, result = of.shape, of.results[0]
    if result is not None and prod(before) != prod(result.shape):
        of.refuse(
            f"{prod(before)} elements of shape {list(before)} do not fill the shape "
            f"{list(result.shape)} that the model fixes; bind dimensions that fit it"
        )
    return of.results


def check_order(of: Inference) -> Sequence[Tensor | None]:
    """``perm`` of a Transpose names every axis once."""
    rank, order = len(of.shape), of.node.attributes.get("perm")
    if order is not None and sorted(order) != list(range(rank)):
        of.refuse(f"perm {list(order)} of a tensor of {rank} axes")
    return of.results


def check_axis(of: Inference) -> Sequence[Tensor | None]:
    """``axis`` of a Flatten is one of the tensor, or the end."""
    rank, axis = len(of.shape), int(of.node.attributes.get("axis", 1))
    if not -rank <= axis <= rank:
        of.refuse(f"axis {axis} of a tensor of {rank} axes")
    return of.results


def crop_pool(of: Inference) -> Sequence[Tensor | None]:
    """With ``ceil_mode``, no window of a pool starts outside x and the padding before it.

    So since opset 22, and in ONNX Runtime for every opset.
    """
    words = of.node.attributes
    x, taps = of.shape[2:], len(words.get("kernel_shape") or [])
    if not words.get("ceil_mode") or taps != len(x):
        return of.results
    strides = words.get("strides") or [1] * taps
    pads = words.get("pads") or [0] * 2 * taps
    before = pads if words.get("auto_pad", "NOTSET") == "NOTSET" else [0] * taps

    def crop(tensor: Tensor) -> Tensor:
        sizes = [
            size - ((size - 1) * strides[at] >= x[at] + before[at])
            for at, size in enumerate(tensor.shape[2:])
        ]
        return replace(tensor, shape=(*tensor.shape[:2], *sizes))

    return [None if tensor is None else crop(tensor) for tensor in of.results]


def like_input(of: Inference) -> Sequence[Tensor | None]:
    """A result of the type of the first input, where ONNX infers none."""
    return of.first(of.shape) if of.results[0] is None else of.results


def compress(of: Inference) -> Sequence[Tensor | None]:
    """As many slices, or elements, as a constant condition has true entries."""
    condition, shape = of.value(1), list(of.shape)
    if condition is None:
        return of.results
    count, axis = int(np.count_nonzero(condition)), of.node.attributes.get("axis")
    if axis is None:
        shape = [count]
    elif -len(shape) <= axis < len(shape):
        shape[axis] = count
    return of.first(shape)


def max_unpool(of: Inference) -> Sequence[Tensor | None]:
    """The shape that a constant third input has."""
    sizes = of.value(2)
    return of.results if sizes is None else of.first(sizes.reshape(-1).tolist())


def stft(of: Inference) -> Sequence[Tensor | None]:
    """Half of the frequencies by default, which inference takes for all."""
    result = of.results[0]
    if result is None or "onesided" in of.node.attributes:
        return of.results
    length = of.value(3)
    frame = of.input(2).shape[0] if of.node.input(2) else of.shape[1]
    if length is not None:
        frame = int(length.reshape(-1)[0])
    return of.first((*result.shape[:2], frame // 2 + 1, *result.shape[3:]), result.dtype)


def cut(of: Inference) -> Sequence[Tensor | None]:
    """A Slice by attributes, whose ends lie where they may; inference leaves them there."""
    starts, ends = (of.node.attributes.get(name) for name in ("starts", "ends"))
    if starts is None or ends is None:
        return of.results
    shape = list(of.shape)
    for axis, start, end in zip(
        of.node.attributes.get("axes") or range(len(starts)), starts, ends, strict=True
    ):
        if not -len(shape) <= axis < len(shape):
            return of.results
        shape[axis] = len(range(shape[axis])[start:end])
    return of.first(shape)
