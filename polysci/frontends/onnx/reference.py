"""The value of every tensor of a graph, by ONNX's reference implementation, node by node."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.onnx.attributes import onnx_attributes
from polysci.frontends.onnx.model_file import newest_opset, onnx_module
from polysci.graph.graph import LOOP_BEGIN, Graph, Node, end_of_loop
from polysci.graph.operators import OPERATORS, onnx_name
from polysci.graph.operators.indexing import with_places_inside
from polysci.graph.operators.quantised import ROUNDINGS, nudge_inputs
from polysci.graph.operators.table import Evaluation, Nudge
from polysci.numerics.arrays import Array
from polysci.numerics.dtypes import from_bf16


@np.errstate(all="ignore")  # infinity, and no number, are results as well
def run(
    graph: Graph, inputs: Mapping[str, Array], dtype: str = "float64", nudge: Nudge | None = None
) -> dict[str, Array]:
    """Compute all tensors by name, floating point ones in ``dtype``.

    A ``nudge`` moves what is rounded to 8 bits. Raises as ``run_outputs`` does.
    """
    tensors = _inputs(graph, inputs, dtype)
    for name, value in graph.constants.items():
        tensors[name] = _as(value, dtype)
    _run_nodes(graph, graph.nodes, tensors, dtype, nudge)
    return tensors


@np.errstate(all="ignore")  # infinity, and no number, are results as well
def run_outputs(
    graph: Graph, inputs: Mapping[str, Array], names: Collection[str], dtype: str = "float64",
    nudge: Nudge | None = None,
) -> dict[str, Array]:  # fmt: skip
    """Compute some tensors by name; others, and constants in ``dtype``, go after their last use.

    Raises SpecError for an input that is missing or has another shape, UnsupportedError for a node
    that ONNX's reference does not have.
    """
    tensors = _inputs(graph, inputs, dtype)
    units = [*_units(graph.nodes)]
    read = [[name for node in unit for name in node.inputs] for unit in units]
    last = {name: at for at, some in enumerate(read) for name in some}
    for at, unit in enumerate(units):
        for name in read[at]:
            if name in graph.constants and name not in tensors:
                tensors[name] = _as(graph.constants[name], dtype)
        _run_nodes(graph, unit, tensors, dtype, nudge)
        for name in (*read[at], *(name for node in unit for name in node.outputs)):
            if last.get(name, at) <= at and name not in names:
                tensors.pop(name, None)
    fixed = {name: graph.constants[name] for name in names if name in graph.constants}
    return {name: _as(fixed[name], dtype) if name in fixed else tensors[name] for name in names}


def _inputs(graph: Graph, inputs: Mapping[str, Array], dtype: str) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    for tensor in graph.inputs:
        array = inputs.get(tensor.name)
        if array is None or array.shape != tensor.shape:
            actual = "none" if array is None else f"shape {array.shape}"
            raise SpecError(f"input {tensor.name!r}: expected shape {tensor.shape}, got {actual}")
        real = from_bf16(array) if tensor.dtype == "bf16" else array
        tensors[tensor.name] = _as(real, dtype)
    return tensors


def _run_nodes(
    graph: Graph, nodes: Sequence[Node], tensors: dict[str, Array], dtype: str, nudge: Nudge | None
) -> None:
    """Add the results of nodes, of loops those of their last step."""
    for unit in _units(nodes):
        if unit[0].op == LOOP_BEGIN:
            _run_loop(graph, unit, tensors, dtype, nudge)
        else:
            results = of_node(graph, unit[0], tensors, nudge)
            arrays = [_as(np.asarray(value), dtype) for value in results]
            tensors |= zip(unit[0].outputs, arrays, strict=False)


def _units(nodes: Sequence[Node]) -> Iterator[Sequence[Node]]:
    """Yield nodes one by one, those from the beginning of a loop to its end together."""
    at = 0
    while at < len(nodes):
        end = end_of_loop(nodes, at) + 1 if nodes[at].op == LOOP_BEGIN else at + 1
        yield nodes[at:end]
        at = end


def _run_loop(
    graph: Graph, nodes: Sequence[Node], tensors: dict[str, Array], dtype: str, nudge: Nudge | None
) -> None:
    """Run the steps of a loop, from the node that begins one to that which ends it."""
    begin, *body, end = nodes
    attributes, stacked = begin.attributes, end.attributes["stacked"]
    trips, going, states = attributes["count"], True, attributes["states"]
    trips = min(trips, int(tensors[begin.inputs[0]])) if begin.inputs[0] else trips
    going = bool(tensors[begin.inputs[1]].any()) if begin.inputs[1] else True
    values = [tensors[name] for name in begin.inputs[2 : 2 + states]]
    scanned = [tensors[name] for name in begin.inputs[2 + states :]]
    types = [graph.tensors[name] for name in end.outputs[states:]]
    parts = [_as(np.zeros(kind.shape, kind.dtype), dtype) for kind in types[: len(stacked)]]
    step = 0
    while step < trips and going:
        last = attributes["count"] - 1
        slices = [
            np.take(array, last - step if back else step, axis)
            for array, (axis, back) in zip(scanned, attributes["slices"], strict=True)
        ]
        tensors |= zip(begin.outputs, [np.array(step), *values, *slices], strict=True)
        _run_nodes(graph, body, tensors, dtype, nudge)
        going = bool(tensors[end.inputs[1]].any()) if end.inputs[1] else True
        values = [tensors[name] for name in end.inputs[2 : 2 + states]]
        for part, name, (axis, back) in zip(parts, end.inputs[2 + states :], stacked, strict=True):
            place = part.shape[axis] - 1 - step if back else step
            part[(slice(None),) * axis + (place,)] = tensors[name]
        step += 1
    tensors |= zip(end.outputs, [*values, *parts, np.array(step)], strict=False)


def _as(value: Array, dtype: str) -> Array:
    return value.astype(dtype) if value.dtype.kind == "f" else value


@np.errstate(all="ignore")  # infinity, and no number, are results as well
def of_node(
    graph: Graph, node: Node, known: Mapping[str, Array], nudge: Nudge | None = None
) -> list[Any]:
    """Compute the results of one node for the values that are known."""
    if nudge and node.op in ROUNDINGS:
        known = nudge_inputs(node, known, nudge)
    if node.op == "quantized_conv" or (
        node.op == "quantized_matmul" and (node.input(8) or (nudge and _has_one_scale(node, known)))
    ):
        return [_linear_product(graph, node, known, nudge)]
    known = with_places_inside(node, known)
    results = tuple(graph.tensors[name] for name in node.outputs if name in graph.tensors)
    own = compute_by_own_rules(Evaluation(node, known, results, nudge))
    if own is not None:
        return list(own)
    if results and all(0 in tensor.shape for tensor in results):  # several of ONNX's fail there
        return [np.zeros(tensor.shape, tensor.dtype) for tensor in results]
    return _evaluate(node, known)


def _evaluate(node: Node, known: Mapping[str, Array]) -> list[Any]:
    """Compute a node by ONNX's reference. Raises UnsupportedError where it has none."""
    helper = onnx_module().helper
    from onnx.reference import ReferenceEvaluator

    name = onnx_name(node.op)
    proto = helper.make_node(name, node.inputs, node.outputs, **_attributes(node))
    feeds = {name: known[name] for name in node.inputs if name}
    kind = helper.np_dtype_to_tensor_dtype
    inputs = [helper.make_tensor_value_info(n, kind(v.dtype), v.shape) for n, v in feeds.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.outputs if name]
    opset = helper.make_opsetid("", newest_opset())
    model = helper.make_model(
        helper.make_graph([proto], "one", inputs, outputs), opset_imports=[opset]
    )
    try:
        results = iter(ReferenceEvaluator(model).run(None, feeds))
    except Exception as error:  # it has many of its own, for what it lacks
        text = " ".join(str(error).split())
        raise UnsupportedError(f"{node}: ONNX's reference cannot compute it: {text:.300}") from None
    return [np.asarray(next(results)) if name else np.zeros(0) for name in node.outputs]


def compute_by_own_rules(of: Evaluation) -> Sequence[Array] | None:
    """Compute a node that ONNX's reference lacks or gets wrong; return None for all others."""
    row = OPERATORS.get(of.node.op)
    return None if row is None or row.reference is None else row.reference(of)


def _has_one_scale(node: Node, known: Mapping[str, Array]) -> bool:
    """Return whether A of a QLinearMatMul has one scale and zero, and B is a matrix."""
    _, scale, zero, b = (known[name] for name in node.inputs[:4])
    return scale.size == zero.size == 1 and b.ndim == 2


def _linear_product(
    graph: Graph, node: Node, known: Mapping[str, Array], nudge: Nudge | None
) -> Array:
    """Compute QLinearConv of any number of axes (ONNX's reference has two), or QLinearMatMul."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = (
        known[name] for name in node.inputs if name
    )
    op = node.op.removeprefix("quantized_")
    behind = [1] * (w.ndim - (1 if op == "conv" else 2))
    whole = {
        "x": x.astype(np.float64) - x_zero.reshape(()),
        "w": w.astype(np.float64) - w_zero.reshape((-1, *behind) if w_zero.size > 1 else ()),
    }
    (sums,) = of_node(graph, replace(node, op=op, inputs=("x", "w")), whole)
    behind = behind[: x.ndim - 2] if op == "conv" else []
    factor = (x_scale.astype(np.float64) * w_scale / y_scale).reshape(-1, *behind)
    total = sums + (bias[0].reshape(-1, *behind) if bias else 0)
    limits = np.iinfo(y_zero.dtype)
    scaled = total * factor
    rounded: Array = np.rint(scaled + nudge(scaled.shape) if nudge else scaled) + y_zero
    return np.clip(rounded, limits.min, limits.max).astype(y_zero.dtype)


def _attributes(node: Node) -> dict[str, Any]:
    """Return attributes as ``make_node`` takes them."""
    onnx = onnx_module()
    return {
        name: onnx.numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        for name, value in onnx_attributes(node.attributes).items()
    }
