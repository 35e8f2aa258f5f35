"""Shapes of a node's results: by ONNX's inference, and the rules that it does not check."""

from __future__ import annotations

from typing import Any

import numpy as np

from polysci.errors import SpecError
from polysci.frontends.onnx.model_file import is_implemented
from polysci.frontends.onnx.tensors import TensorTable, is_fixed
from polysci.graph.graph import Node
from polysci.graph.operators import OPERATORS
from polysci.graph.operators.table import Inference, ShapeError

MOST_SHOWN = 1024  # elements of a value that inference is told

Types = dict[str, Any]


def infer(table: TensorTable, proto: Any, node: Node) -> Types:
    """Infer types of a node's results that have one shape. Raises SpecError for a contradiction."""
    onnx = table.onnx
    names = {name for name in node.inputs if name}
    data = {
        name: onnx.numpy_helper.from_array(np.asarray(table.values[name], order="C"), name)
        for name in names
        if name in table.values and table.values[name].size <= MOST_SHOWN
    }
    opset = is_implemented(proto.op_type, table.opset)
    try:
        kinds: Types = onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(proto.op_type, opset), proto,
            {name: table.types[name] for name in names}, data,
            opset_imports=[onnx.helper.make_opsetid("", opset)],
        )  # fmt: skip
    except Exception as error:  # InferenceError, SchemaError and more
        raise _fault(table, node, str(error)) from None
    kinds = {name: kind for name, kind in kinds.items() if is_fixed(kind)}
    _apply_rule(table, node, kinds)
    for name, kind in kinds.items():
        table.tensor_of(name, kind)
    return kinds


def _fault(table: TensorTable, node: Node, reason: str) -> SpecError:
    return SpecError(f"{table.where}: {str(node)!r:.200}: {reason}")


def infer_own(table: TensorTable, node: Node) -> Types:
    """Infer types of results of an operator that ONNX lacks, by its row; none without a rule."""
    kinds: Types = {}
    _apply_rule(table, node, kinds)
    return kinds


def _apply_rule(table: TensorTable, node: Node, kinds: Types) -> None:
    """Correct, or add, types of results by the operator's row."""
    row = OPERATORS.get(node.op)
    if row is None or row.shapes is None:
        return
    before = [
        table.tensor_of(name, kinds[name]) if name in kinds else None for name in node.outputs
    ]
    inputs = [table.tensor(name) if name else None for name in node.inputs]
    values = [table.values.get(name) for name in node.inputs]
    try:
        results = row.shapes(Inference(node, inputs, values, before))
    except ShapeError as error:
        raise _fault(table, node, str(error)) from None
    make = table.onnx.helper
    for old, new in zip(before, results, strict=True):
        if new is not None and new != old:
            kind = make.np_dtype_to_tensor_dtype(np.dtype(new.dtype))
            kinds[new.name] = make.make_tensor_type_proto(kind, list(new.shape))
