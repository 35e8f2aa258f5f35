"""Types and values of a model's tensors while it is read, inferred and computed ahead."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any

import numpy as np

from polysci.errors import SpecError
from polysci.frontends.onnx.reference import compute_by_own_rules
from polysci.graph.graph import Node, Tensor
from polysci.graph.operators import OPERATORS
from polysci.graph.operators.table import Evaluation, Inference, ShapeError
from polysci.numerics.arrays import Array

MOST_BYTES = 1 << 36  # of one tensor
MOST_DIMS = 16


@dataclass(slots=True)
class TensorTable:
    """Types (``TypeProto``) and values by name; ``opset`` is the version of ONNX's operators."""

    onnx: Any
    where: str
    opset: int
    types: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)

    def learn(self, name: str, value: Array) -> None:
        """Note a tensor's value, and with it its type."""
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        self.types[name] = self.onnx.helper.make_tensor_type_proto(kind, value.shape)
        self.values[name] = value

    def array(self, tensor: Any) -> Array:
        """Return the value of a tensor of the file."""
        try:
            if any(size < 0 for size in tensor.dims) or prod(tensor.dims) > MOST_BYTES:
                raise ValueError(f"shape {list(tensor.dims)}")
            array: Array = self.onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # onnx has many, for many kinds of damage
            raise SpecError(f"{self.where}: tensor {tensor.name!r:.200}: {error}") from None
        return array

    def tensor(self, name: str) -> Tensor:
        """Return the tensor of a name."""
        return self.tensor_of(name, self.types[name])

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensor(name).shape

    def tensor_of(self, name: str, kind: Any) -> Tensor:
        """Return a type of one shape as a Tensor."""
        shape = tuple(int(dim.dim_value) for dim in kind.tensor_type.shape.dim)
        dtype = self.onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
        self.check(name, shape, dtype)
        return Tensor(name, shape, np.dtype(dtype).name)

    def check(self, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        """Raise for a shape that no memory holds."""
        bad = len(shape) > MOST_DIMS or any(size < 0 for size in shape)
        if bad or prod(shape) * np.dtype(dtype).itemsize > MOST_BYTES:
            raise SpecError(f"{self.where}: tensor {name!r:.200} has shape {list(shape)}")

    def fault(self, node: Node, reason: str) -> SpecError:
        """Return an error of a node."""
        return SpecError(f"{self.where}: {str(node)!r:.200}{reason}")


def is_fixed(kind: Any) -> bool:
    """Tell whether a type says one shape."""
    shape = kind.tensor_type.shape
    sized = all(dim.HasField("dim_value") for dim in shape.dim)
    return bool(kind.tensor_type.HasField("shape") and sized)


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
    try:
        kinds: Types = onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(proto.op_type, table.opset), proto,
            {name: table.types[name] for name in names}, data,
            opset_imports=[onnx.helper.make_opsetid("", table.opset)],
        )  # fmt: skip
    except Exception as error:  # InferenceError, SchemaError and more
        raise table.fault(node, f": {error}") from None
    kinds = {name: kind for name, kind in kinds.items() if is_fixed(kind)}
    _apply_rule(table, node, kinds)
    for name, kind in kinds.items():
        table.tensor_of(name, kind)
    return kinds


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
        raise table.fault(node, f": {error}") from None
    make = table.onnx.helper
    for old, new in zip(before, results, strict=True):
        if new is not None and new != old:
            kind = make.np_dtype_to_tensor_dtype(np.dtype(new.dtype))
            kinds[new.name] = make.make_tensor_type_proto(kind, list(new.shape))


MOST_FOLDED = 1 << 30  # bytes that are computed ahead at once


@np.errstate(all="ignore")  # infinity, and no number, are results as well
def fold(table: TensorTable, proto: Any, node: Node) -> list[Array] | None:
    """Return the results of a node that depends on nothing but weights and shapes, else None."""
    if node.op == "shape":
        return [_shape_of(table, node)]
    if node.op == "size":
        return [np.array(prod(table.shape(node.inputs[0])), np.int64)]
    row = OPERATORS.get(node.op)
    needs_values = row is None or not row.shape_only
    if needs_values and any(name not in table.values for name in node.inputs if name):
        return None
    if node.op == "constant_of_shape":
        return [_constant_of_shape(table, node)]
    if node.op == "range":
        return [_range(table, node)]
    if sum(table.values[name].nbytes for name in node.inputs if name in table.values) > MOST_FOLDED:
        return None
    return _compute(table, proto, node)


def _shape_of(table: TensorTable, node: Node) -> Array:
    shape = table.shape(node.inputs[0])
    start, end = (node.attributes.get(name) for name in ("start", "end"))
    return np.array(shape[start:end], np.int64)


def _constant_of_shape(table: TensorTable, node: Node) -> Array:
    """Return one value in every place, held once."""
    value = node.attributes.get("value", np.zeros(1, np.float32))
    shape = tuple(int(size) for size in table.values[node.inputs[0]])
    table.check(node.outputs[0], shape, value.dtype)
    if (size := prod(shape) * value.dtype.itemsize) > MOST_FOLDED:
        what = f"shape {list(shape)} takes {size} bytes; expected at most {MOST_FOLDED}"
        raise table.fault(node, f": {what}")
    return np.broadcast_to(value.reshape(()), shape)


def _range(table: TensorTable, node: Node) -> Array:
    """Compute Range of every type, and of lists of one number, which ONNX's inference refuses."""
    start, limit, step = (table.values[name].reshape(-1) for name in node.inputs)
    if any(len(number) != 1 for number in (start, limit, step)) or not step[0]:
        raise table.fault(node, f": from {start} to {limit} by {step}")
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
    row = OPERATORS.get(node.op)
    unbounded = row is None or not row.bounded
    if unbounded and any(name and name not in kinds for name in node.outputs):
        return None
    _check_bytes(table, node, kinds)
    feeds = {name: _value(table, name) for name in node.inputs if name}
    own = compute_by_own_rules(Evaluation(node, feeds))
    if own is not None:
        return list(own)
    inputs = [helper.make_value_info(name, table.types[name]) for name in feeds]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.outputs if name]
    graph = helper.make_graph([proto], "one", inputs, outputs)
    opset = helper.make_opsetid("", table.opset)
    model = helper.make_model(graph, opset_imports=[opset])
    try:
        results = iter(ReferenceEvaluator(model).run(None, feeds))
    except Exception as error:  # whatever NumPy and the reference raise
        raise table.fault(node, f": {error}") from None
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
        what = f"{size} bytes to compute ahead; expected at most {MOST_FOLDED}"
        raise table.fault(node, f": tensor {largest!r:.200}: {what}")
