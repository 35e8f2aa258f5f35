"""Shapes of a node's results: by ONNX's inference, and the rules that it does not check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.errors import SpecError
from polysci.frontends.onnx.model_file import is_implemented
from polysci.frontends.onnx.shapes import SHAPES
from polysci.frontends.onnx.tensors import TensorTable, is_fixed
from polysci.graph.graph import Node

MOST_SHOWN = 1024  # elements of a value that inference is told

Types = dict[str, Any]


def infer(table: TensorTable, proto: Any, node: Node) -> Types:
    """Types of a node's results that have one shape. Raises SpecError for a contradiction."""
    onnx = table.onnx
    names = {name for name in node.inputs if name}
    data = {
        name: onnx.numpy_helper.from_array(np.asarray(table.values[name], order="C"), name)
        for name in names
        if name in table.values and table.values[name].size <= MOST_SHOWN
    }
    opset = is_implemented(node.op, table.opset)
    try:
        kinds: Types = onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(node.op, opset), proto,
            {name: table.types[name] for name in names}, data,
            opset_imports=[onnx.helper.make_opsetid("", opset)],
        )  # fmt: skip
    except Exception as error:  # InferenceError, SchemaError and more
        raise _fault(table, node, str(error)) from None
    kinds = {name: kind for name, kind in kinds.items() if is_fixed(kind)}
    if rule := _RULES.get(node.op):
        rule(table, node, kinds)
    for name, kind in kinds.items():
        table.tensor_of(name, kind)
    return kinds


def _fault(table: TensorTable, node: Node, reason: str) -> SpecError:
    return SpecError(f"{table.where}: {str(node)!r:.200}: {reason}")


def _check_count(table: TensorTable, node: Node, kinds: Types) -> None:
    """A Reshape keeps all elements."""
    if (kind := kinds.get(node.outputs[0])) is None:
        return
    before, after = table.shape(node.inputs[0]), [dim.dim_value for dim in _dims(kind)]
    if prod(before) != prod(after):
        raise _fault(
            table, node, f"{prod(before)} elements of shape {list(before)} do not fill the shape "
            f"{after} that the model fixes; bind dimensions that fit it",
        )  # fmt: skip


def _check_order(table: TensorTable, node: Node, kinds: Types) -> None:
    """``perm`` of a Transpose names every axis once."""
    rank, order = len(table.shape(node.inputs[0])), node.attributes.get("perm")
    if order is not None and sorted(order) != list(range(rank)):
        raise _fault(table, node, f"perm {list(order)} of a tensor of {rank} axes")


def _check_axis(table: TensorTable, node: Node, kinds: Types) -> None:
    """``axis`` of a Flatten is one of the tensor, or the end."""
    rank, axis = len(table.shape(node.inputs[0])), int(node.attributes.get("axis", 1))
    if not -rank <= axis <= rank:
        raise _fault(table, node, f"axis {axis} of a tensor of {rank} axes")


def _crop_pool(table: TensorTable, node: Node, kinds: Types) -> None:
    """With ``ceil_mode``, no window of a pool starts outside x and the padding before it.

    So since opset 22, and in ONNX Runtime for every opset.
    """
    x, taps = table.shape(node.inputs[0])[2:], len(node.attributes.get("kernel_shape") or [])
    if not node.attributes.get("ceil_mode") or taps != len(x):
        return
    strides = node.attributes.get("strides") or [1] * taps
    pads = node.attributes.get("pads") or [0] * 2 * taps
    before = pads if node.attributes.get("auto_pad", "NOTSET") == "NOTSET" else [0] * taps
    for kind in kinds.values():
        for at, dim in enumerate(_dims(kind)[2:]):
            if (dim.dim_value - 1) * strides[at] >= x[at] + before[at]:
                dim.dim_value -= 1


def _like_input(table: TensorTable, node: Node, kinds: Types) -> None:
    """A result of the type of the first input, where ONNX infers none."""
    kinds.setdefault(node.outputs[0], table.types[node.inputs[0]])


def _dims(kind: Any) -> Any:
    return kind.tensor_type.shape.dim


_RULES: Mapping[str, Callable[[TensorTable, Node, Types], None]] = MappingProxyType(
    {
        "Reshape": _check_count,
        "Transpose": _check_order,
        "Flatten": _check_axis,
        "GroupNormalization": _like_input,
        **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _crop_pool),
        **SHAPES,
    }
)
