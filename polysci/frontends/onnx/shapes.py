"""Shapes of results that ONNX's inference leaves open, or gets wrong, where constants tell them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.frontends.onnx.tensors import TensorTable
from polysci.graph.graph import Node
from polysci.numerics.arrays import Array

Types = dict[str, Any]


def _learn(table: TensorTable, node: Node, kinds: Types, shape: Sequence[int]) -> None:
    """The first result has the elements of the first input, and a shape."""
    kind = table.types[node.inputs[0]].tensor_type.elem_type
    kinds[node.outputs[0]] = table.onnx.helper.make_tensor_type_proto(kind, shape)


def _value(table: TensorTable, node: Node, position: int) -> Array | None:
    return table.values.get(node.input(position))


def compress(table: TensorTable, node: Node, kinds: Types) -> None:
    """As many slices, or elements, as a constant condition has true entries."""
    condition, shape = _value(table, node, 1), list(table.shape(node.inputs[0]))
    if condition is None:
        return
    count = int(np.count_nonzero(condition))
    axis = node.attributes.get("axis")
    if axis is None:
        shape = [count]
    elif -len(shape) <= axis < len(shape):
        shape[axis] = count
    _learn(table, node, kinds, shape)


def max_unpool(table: TensorTable, node: Node, kinds: Types) -> None:
    """What a constant third input says."""
    sizes = _value(table, node, 2)
    if sizes is not None:
        _learn(table, node, kinds, [int(size) for size in sizes.reshape(-1)])


def stft(table: TensorTable, node: Node, kinds: Types) -> None:
    """Half of the frequencies by default, which inference takes for all."""
    kind = kinds.get(node.outputs[0])
    if kind is None or "onesided" in node.attributes:
        return
    length = _value(table, node, 3)
    frame = table.shape(node.inputs[2])[0] if node.input(2) else table.shape(node.inputs[0])[1]
    if length is not None:
        frame = int(length.reshape(-1)[0])
    kind.tensor_type.shape.dim[2].dim_value = frame // 2 + 1


def compare(table: TensorTable, node: Node, kinds: Types) -> None:
    """The shape to which both broadcast, of truth values: not inferred before opset 16."""
    try:
        shape = np.broadcast_shapes(*(table.shape(name) for name in node.inputs))
    except ValueError:  # the operator names both
        return
    kind = table.onnx.TensorProto.BOOL
    kinds.setdefault(node.outputs[0], table.onnx.helper.make_tensor_type_proto(kind, list(shape)))


def cut(table: TensorTable, node: Node, kinds: Types) -> None:
    """A Slice by attributes, whose ends lie where they may; inference leaves them there."""
    starts, ends = (node.attributes.get(name) for name in ("starts", "ends"))
    if starts is None or ends is None:
        return
    shape = list(table.shape(node.inputs[0]))
    for axis, start, end in zip(
        node.attributes.get("axes") or range(len(starts)), starts, ends, strict=True
    ):
        if not -len(shape) <= axis < len(shape):
            return
        shape[axis] = len(range(shape[axis])[start:end])
    _learn(table, node, kinds, shape)


SHAPES: Mapping[str, Callable[[TensorTable, Node, Types], None]] = MappingProxyType(
    {
        "Slice": cut,
        "GreaterOrEqual": compare,
        "LessOrEqual": compare,
        "Compress": compress,
        "MaxUnpool": max_unpool,
        "STFT": stft,
    }
)
