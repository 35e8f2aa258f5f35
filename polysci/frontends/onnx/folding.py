"""Results of nodes that depend on weights and shapes alone, within bounds of memory."""

from __future__ import annotations

from math import ceil, prod
from typing import Any

import numpy as np

from polysci.errors import SpecError
from polysci.frontends.onnx.inference import Types, infer
from polysci.frontends.onnx.model_file import is_implemented
from polysci.frontends.onnx.reference import compute_by_own_rules
from polysci.frontends.onnx.tensors import TensorTable
from polysci.graph.graph import Node
from polysci.graph.operators.table import Evaluation
from polysci.numerics.arrays import Array

MOST_FOLDED = 1 << 30  # bytes that are computed ahead at once
# The result is no larger than what goes in, however many elements it turns out to have.
BOUNDED = ("non_zero", "unique", "compress")
SHAPE_ONLY = ("shape", "size", "eye_like")  # the value of the input does not matter


@np.errstate(all="ignore")  # infinity, and no number, are results as well
def fold(table: TensorTable, proto: Any, node: Node) -> list[Array] | None:
    """Return the results of a node that depends on nothing but weights and shapes, else None."""
    if node.op == "shape":
        return [_shape_of(table, node)]
    if node.op == "size":
        return [np.array(prod(table.shape(node.inputs[0])), np.int64)]
    if any(name not in table.values for name in node.inputs if name) and node.op not in SHAPE_ONLY:
        return None
    if node.op == "constant_of_shape":
        return [_repeat(table, node)]
    if node.op == "range":
        return [_range(table, node)]
    if sum(table.values[name].nbytes for name in node.inputs if name in table.values) > MOST_FOLDED:
        return None
    return _compute(table, proto, node)


def _shape_of(table: TensorTable, node: Node) -> Array:
    shape = table.shape(node.inputs[0])
    start, end = (node.attributes.get(name) for name in ("start", "end"))
    return np.array(shape[start:end], np.int64)


def _repeat(table: TensorTable, node: Node) -> Array:
    """Return one value in every place, held once."""
    value = node.attributes.get("value", np.zeros(1, np.float32))
    shape = tuple(int(size) for size in table.values[node.inputs[0]])
    table.check(node.outputs[0], shape, value.dtype)
    if (size := prod(shape) * value.dtype.itemsize) > MOST_FOLDED:
        raise SpecError(
            f"{table.where}: {str(node)!r:.200}: shape {list(shape)} takes {size} bytes; "
            f"expected at most {MOST_FOLDED}"
        )
    return np.broadcast_to(value.reshape(()), shape)


def _range(table: TensorTable, node: Node) -> Array:
    """Compute Range of every type, and of lists of one number, which ONNX's inference refuses."""
    start, limit, step = (table.values[name].reshape(-1) for name in node.inputs)
    if any(len(number) != 1 for number in (start, limit, step)) or not step[0]:
        raise SpecError(f"{table.where}: {str(node)!r:.200}: from {start} to {limit} by {step}")
    count = max(0, ceil((limit[0].item() - start[0].item()) / step[0].item()))
    kind = table.types[node.inputs[0]].tensor_type.elem_type
    result = table.onnx.helper.make_tensor_type_proto(kind, [count])
    _check_bytes(table, node, {node.outputs[0]: result})
    numbers: Array = (start + np.arange(count) * step).astype(start.dtype)
    return numbers


def _compute(table: TensorTable, proto: Any, node: Node) -> list[Array] | None:
    """Compute a node by ONNX's reference on known values; None where a shape depends on them."""
    helper = table.onnx.helper
    from onnx.reference import ReferenceEvaluator

    kinds = infer(table, proto, node)
    if node.op not in BOUNDED and any(name and name not in kinds for name in node.outputs):
        return None
    _check_bytes(table, node, kinds)
    feeds = {name: _value(table, name) for name in node.inputs if name}
    own = compute_by_own_rules(Evaluation(node, feeds, opset=table.opset))
    if own is not None:
        return list(own)
    inputs = [helper.make_value_info(name, table.types[name]) for name in feeds]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.outputs if name]
    graph = helper.make_graph([proto], "one", inputs, outputs)
    opset = helper.make_opsetid("", is_implemented(proto.op_type, table.opset))
    model = helper.make_model(graph, opset_imports=[opset])
    try:
        results = iter(ReferenceEvaluator(model).run(None, feeds))
    except Exception as error:  # whatever NumPy and the reference raise
        raise SpecError(f"{table.where}: {str(node)!r:.200}: {error}") from None
    values = {name: np.asarray(next(results)) for name in node.outputs if name}
    for name, kind in kinds.items():
        tensor = table.tensor_of(name, kind)
        if values[name].shape != tensor.shape:
            return None  # as of pools, whose last window ONNX's reference counts otherwise
        values[name] = values[name].astype(tensor.dtype, copy=False)
    return [values.get(name, np.zeros(0)) for name in node.outputs]


def _value(table: TensorTable, name: str) -> Array:
    """Return the value, or zeros of its shape, held once, where none is known."""
    if name in table.values:
        return table.values[name]
    tensor = table.tensor(name)
    return np.broadcast_to(np.zeros((), tensor.dtype), tensor.shape)


def _check_bytes(table: TensorTable, node: Node, kinds: Types) -> None:
    results = [table.tensor_of(name, kind) for name, kind in kinds.items()]
    if (size := sum(tensor.bytes for tensor in results)) > MOST_FOLDED:
        largest = max(results, key=lambda tensor: tensor.bytes).name
        raise SpecError(
            f"{table.where}: {str(node)!r:.200}: tensor {largest!r:.200}: {size} bytes to "
            f"compute ahead; expected at most {MOST_FOLDED}"
        )
