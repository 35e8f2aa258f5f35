"""The value of every tensor of a graph, by ONNX's reference implementation, node by node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polysci.errors import SpecError
from polysci.graph.ir import AFFINE, Array, Graph, Node
from polysci.graph.model_file import onnx_module


def run(graph: Graph, inputs: Mapping[str, Array], dtype: str = "float64") -> dict[str, Array]:
    """All tensors by name, floating point ones computed in ``dtype``.

    Raises SpecError for an input that is missing or has another shape.
    """
    found: dict[str, Array] = {}
    for tensor in graph.inputs:
        given = inputs.get(tensor.name)
        if given is None or given.shape != tensor.shape:
            got = "none" if given is None else f"shape {given.shape}"
            raise SpecError(f"input {tensor.name!r}: expected shape {tensor.shape}, got {got}")
        found[tensor.name] = _as(given, dtype)
    for name, value in graph.constants.items():
        found[name] = _as(value, dtype)
    for node in graph.nodes:
        found |= zip(node.outputs, _results(graph, node, found), strict=False)
    return found


def _as(value: Array, dtype: str) -> Array:
    return value.astype(dtype) if value.dtype.kind == "f" else value


def _results(graph: Graph, node: Node, known: Mapping[str, Array]) -> list[Any]:
    if node.op == AFFINE:
        x, scale, shift = (known[name] for name in node.inputs)
        along = (-1, *[1] * (x.ndim - 2))
        return [x * scale.reshape(along) + shift.reshape(along)]
    helper = onnx_module().helper
    from onnx.reference import ReferenceEvaluator

    proto = helper.make_node(node.op, node.inputs, node.outputs, **_attributes(node))
    feeds = {name: known[name] for name in node.inputs if name}
    kind = helper.np_dtype_to_tensor_dtype
    inputs = [helper.make_tensor_value_info(n, kind(v.dtype), v.shape) for n, v in feeds.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.outputs if name]
    opset = helper.make_opsetid("", graph.opset)
    model = helper.make_model(
        helper.make_graph([proto], "one", inputs, outputs), opset_imports=[opset]
    )
    made = iter(ReferenceEvaluator(model).run(None, feeds))
    return [np.asarray(next(made)) if name else np.zeros(0) for name in node.outputs]


def _attributes(node: Node) -> dict[str, Any]:
    """As ``make_node`` takes them."""
    onnx = onnx_module()
    return {
        name: onnx.numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        for name, value in node.attributes.items()
    }
