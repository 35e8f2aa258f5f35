"""The import of an ONNX model as a Graph: inputs bound, shapes inferred, constants computed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from polysci.errors import SpecError
from polysci.frontends.onnx.binding import InputBinder
from polysci.frontends.onnx.branches import expand_if
from polysci.frontends.onnx.classical import expansion_of_classical
from polysci.frontends.onnx.dynamic_dims import counted_axes
from polysci.frontends.onnx.dynamic_dims_expansion import expansion_of_counted, expansion_of_counts
from polysci.frontends.onnx.float16 import widen_halves
from polysci.frontends.onnx.functions import (
    expansion_by_function,
    expansion_by_schema,
    functions_of,
    has_definition,
)
from polysci.frontends.onnx.loops import expand_loop, expand_scan
from polysci.frontends.onnx.microsoft import expansion_of_microsoft
from polysci.frontends.onnx.model_file import (
    DOMAINS,
    IN_MEMORY,
    OLDEST,
    ModelSource,
    onnx_module,
    opset_of,
    read,
)
from polysci.frontends.onnx.opset_upgrade import expansion_of_legacy
from polysci.frontends.onnx.reader import NO_OPERATOR, Expansion, Reader
from polysci.frontends.onnx.sequences import expansion_of_sequence
from polysci.frontends.onnx.tensors import TensorTable
from polysci.graph.graph import Graph, Node, ancestors
from polysci.graph.operators import OPERATORS, onnx_name
from polysci.graph.refusals import NodeRefusal, RefusedNodesError

if TYPE_CHECKING:
    import onnx


def load(
    model: ModelSource,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None,
    *,
    external: bool = False,
    supported: Container[str] | None = None,
) -> Graph:
    """Return the graph of an ONNX model.

    ``dims`` binds its free dimensions, by name or as ``INPUT.AXIS``, ``values`` inputs to
    constants: numbers or arrays. Raises SpecError for a file that is no model, a dimension that is
    free or of no use, shapes that contradict each other; RefusedNodesError with every node whose
    type is not in ``supported``.
    """
    where = str(model) if isinstance(model, str | PathLike) else IN_MEMORY
    whole = read(model, external=external)
    return graph_of(whole, dims, values, supported=supported, where=where)


def graph_of(
    model: onnx.ModelProto,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None,
    *,
    supported: Container[str] | None = None,
    where: str = "model",
) -> Graph:
    """Return the graph of a model in memory that ``model_file.check_model`` accepts."""
    opset = opset_of(model, where)
    table = TensorTable(onnx_module(), where, max(opset, OLDEST), opset)
    model = widen_halves(model)
    for tensor in model.graph.initializer:
        table.learn(tensor.name, table.array(tensor))
    InputBinder(table, dims or {}, values or {}).bind(model.graph)
    reader = Reader(table, supported, expansion_of, functions_of(model), counted_axes)
    reader.made |= table.types.keys()
    reader.taken |= reader.made | {name for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        reader.add(node)
    return _finish(reader, model.graph)


def expansion_of(reader: Reader, proto: Any, last: bool) -> Expansion | None:
    """Return the expansion of a node, if any; ``last``: where polysci has no operator for it."""
    if last:
        return expansion_of_counts(reader, proto) or expansion_by_schema(reader, proto)
    if counted := expansion_of_counted(reader, proto):
        return counted
    if function := expansion_by_function(reader, proto):
        return function
    if foreign := expansion_of_microsoft(reader, proto) or expansion_of_classical(reader, proto):
        return foreign
    if proto.domain not in DOMAINS:
        return None
    if legacy := expansion_of_legacy(reader, proto):
        return legacy
    if control := _CONTROL.get(proto.op_type):
        return control
    return expansion_of_sequence(reader, proto)


_CONTROL: Mapping[str, Expansion] = MappingProxyType(
    {"If": expand_if, "Loop": expand_loop, "Scan": expand_scan}
)


def _finish(reader: Reader, graph: Any) -> Graph:
    """Return the graph without what no output needs."""
    table, outputs = reader.table, [tensor.name for tensor in graph.output]
    counted = {name: reader.counted[name] for name in outputs if name in reader.counted}
    outputs += dict.fromkeys(mark.count for mark in counted.values())
    needed, kept = set(outputs), list[Node]()
    for node in reversed(reader.nodes):
        if needed & {name for name in node.outputs if name}:
            needed.update(name for name in node.inputs if name)
            kept.append(node)
    kept.reverse()
    if refusals := [*_refusals(reader, kept, needed)]:
        raise RefusedNodesError(table.where, refusals)
    if untyped := [name for name in outputs if name not in table.types]:
        what = "a sequence" if untyped[0] in reader.sequences else "no tensor"
        raise SpecError(f"{table.where}: output {untyped[0]!r:.200} is {what}")
    made = [name for node in kept for name in node.outputs if name in table.types]
    sources = [tensor.name for tensor in graph.input if tensor.name not in table.values]
    names = dict.fromkeys([*sources, *needed, *made])
    return Graph(
        graph.name,
        tuple(table.tensor(name) for name in sources),
        tuple(table.tensor(name) for name in outputs),
        tuple(kept),
        {name: table.values[name] for name in names if name in table.values},
        {name: table.tensor(name) for name in names},
        table.opset,
        counted,
        dequantised={name: row for name, row in reader.dequantised.items() if name in needed},
    )


def _refusals(reader: Reader, kept: Iterable[Node], needed: set[str]) -> Iterable[NodeRefusal]:
    """Yield refusals of nodes that have no operator, and of those whose results have no type."""
    types, supported, has = reader.table.types, reader.supported, reader.table.onnx.defs.has
    for node in kept:
        typed = all(name in types for name in node.outputs if name in needed)
        if not typed and id(node) in reader.refusals:
            reason, needs = reader.refusals[id(node)]
            yield NodeRefusal(node.op, str(node), reason, _bindable(reader, needs))
        elif (node.op in OPERATORS or has(node.op)) and (supported is None or node.op in supported):
            continue
        elif typed or not (
            (name := onnx_name(node.op)) in _CONTROL or has_definition(reader, name)
        ):
            yield NodeRefusal(node.op, str(node), NO_OPERATOR)


def _bindable(reader: Reader, needs: Iterable[str]) -> tuple[str, ...]:
    """Return the inputs on which tensors depend; none where one holds real data."""
    makers = {name: node for node in reader.nodes for name in node.outputs}
    table, seen = reader.table, ancestors(needs, makers)
    sources = [name for name in table.types if name in seen and name not in makers]
    inputs = [name for name in sources if name not in table.values]
    tensors = [table.tensor(name) for name in inputs]
    whole = all(len(tensor.shape) < 2 or "float" not in tensor.dtype for tensor in tensors)
    return tuple(inputs) if whole else ()
