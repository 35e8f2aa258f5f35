"""The import of an ONNX model as a Graph: inputs bound, shapes inferred, constants computed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from os import PathLike
from shlex import quote
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.onnx.auto_pad import expansion_of_auto_pad
from polysci.frontends.onnx.control_flow import (
    expand_if,
    expand_loop,
    expand_scan,
    expansion_of_sequence,
)
from polysci.frontends.onnx.data_shapes import expansion_of_sizes
from polysci.frontends.onnx.data_sizes import add_sizes
from polysci.frontends.onnx.dialects import (
    expansion_of_classical,
    expansion_of_microsoft,
)
from polysci.frontends.onnx.dynamic_dims import (
    dynamic_dims_of,
    expansion_of_counts,
    expansion_of_dynamic,
)
from polysci.frontends.onnx.model_file import (
    DOMAINS,
    IN_MEMORY,
    KNOWN,
    Body,
    ModelSource,
    bind_attributes,
    newest_opset,
    onnx_module,
    opset_of,
    read,
    read_apart,
    rename_nodes,
    widen_float16,
)
from polysci.frontends.onnx.opset_upgrade import opset_upgrade
from polysci.frontends.onnx.reader import NO_OPERATOR, Expansion, ExpansionError, Reader
from polysci.frontends.onnx.tensors import TensorTable
from polysci.graph.graph import Graph, Node, ancestors
from polysci.graph.operators import OPERATORS, onnx_name, operator_of_onnx
from polysci.graph.refusals import NodeRefusal, RefusedNodesError
from polysci.numerics.arrays import Array

if TYPE_CHECKING:
    import onnx


def functions_of(model: Any) -> dict[tuple[str, str, str], Any]:
    """Return a model's own functions, by domain, name and overload."""
    return {
        (function.domain, function.name, function.overload): function
        for function in model.functions
    }


def expansion_by_function(reader: Reader, proto: Any) -> Expansion | None:
    """Return the expansion of a node to the body of the model's function that it calls."""
    function = reader.functions.get((proto.domain, proto.op_type, proto.overload))
    return None if function is None else partial(_expand_own, function=function)


def expansion_by_schema(reader: Reader, proto: Any) -> Expansion | None:
    """Return the expansion of an operator that ONNX defines by others, and polysci lacks."""
    known, newer = reader.supported, _newer_parts(reader, proto)
    if known is None or (operator_of_onnx(proto.op_type) in known and not newer):
        return None
    if (schema := _schema_with_body(reader, proto.op_type)) is not None:
        return partial(_expand_schema, schema=schema)
    if newer:
        raise ExpansionError(f"{', '.join(newer)}: newer than opset {KNOWN}")
    return None


def _newer_parts(reader: Reader, proto: Any) -> list[str]:
    """Return attributes and inputs that an operator has got since opset KNOWN."""
    if reader.table.opset <= KNOWN:
        return []
    try:
        schema = reader.table.onnx.defs.get_schema(proto.op_type, KNOWN)
    except reader.table.onnx.defs.SchemaError:
        return []
    attributes = [value.name for value in proto.attribute if value.name not in schema.attributes]
    more = len(proto.input) > schema.max_input
    return [*attributes, *([f"input {schema.max_input}"] if more else [])]


def _schema_with_body(reader: Reader, op: str) -> Any:
    """Return the schema of an operator that ONNX defines by others; None for all other ones."""
    defs = reader.table.onnx.defs
    schema = defs.get_schema(op, reader.table.opset) if defs.has(op) else None
    defined = schema and (schema.has_function or schema.has_context_dependent_function)
    return schema if defined else None


def _expand_own(reader: Reader, proto: Any, *, function: Any) -> None:
    defaults = {attribute.name: attribute for attribute in function.attribute_proto}
    _inline_function(reader, proto, function, defaults, _function_opset(function, reader.follows))


def _function_opset(function: Any, default: int) -> int:
    """Return the version of ONNX's operators that a model's function follows."""
    versions = (entry.version for entry in function.opset_import if entry.domain in DOMAINS)
    return int(max(versions, default=default))


def _expand_schema(reader: Reader, proto: Any, *, schema: Any) -> None:
    function, opset = _definition(reader, proto, schema)
    if function is None or not function.node:
        raise ExpansionError(f"ONNX has no definition of it for opset {reader.table.opset}")
    defaults = {
        name: attribute.default_value
        for name, attribute in schema.attributes.items()
        if attribute.default_value.type
    }
    _inline_function(reader, proto, function, defaults, opset)


def _definition(reader: Reader, proto: Any, schema: Any) -> tuple[Any, int]:
    """Return the newest body that the version of the operators may use, None without any.

    The second result is the version that the body follows.
    """
    onnx, opset = reader.table.onnx, reader.table.opset
    if fitting := [version for version in schema.function_opset_versions if version <= opset]:
        data = schema.get_function_with_opset_version(max(fitting))
        return onnx.FunctionProto.FromString(data), max(fitting)
    versions = schema.context_dependent_function_opset_versions
    fitting = [version for version in versions if version <= opset]
    if not fitting:
        return None, opset
    empty = onnx.TypeProto()
    kinds = [reader.table.types[name] if name else empty for name in proto.input]
    data = schema.get_context_dependent_function_with_opset_version(
        max(fitting), proto.SerializeToString(), [kind.SerializeToString() for kind in kinds]
    )
    return onnx.FunctionProto.FromString(data), max(fitting)


def _inline_function(
    reader: Reader, proto: Any, function: Any, defaults: dict[str, Any], opset: int
) -> None:
    """Add the body of a function with the inputs, outputs and attributes of a call."""
    nodes = rename_nodes(function.node, {})
    bind_attributes(nodes, defaults | {value.name: value for value in proto.attribute})
    inputs = [*proto.input, *[""] * (len(function.input) - len(proto.input))]
    outputs = [*proto.output, *[""] * (len(function.output) - len(proto.output))]
    if len(inputs) != len(function.input) or len(outputs) != len(function.output):
        raise ExpansionError(
            f"{len(proto.input)} inputs and {len(proto.output)} outputs; its function has "
            f"{len(function.input)} and {len(function.output)}"
        )
    names = dict(zip(function.input, inputs, strict=True))
    body = Body(nodes, list(function.output))
    with reader.following(opset):
        reader.inline(body, names, outputs, proto.name or proto.output[0])


_FLOAT, _FLOAT16 = 1, 10  # numbers of element types
NO_NAME = "?"  # Paddle calls all of its free dimensions so
SIDE, WORDS = 224, 128  # sizes that examples give to images and texts


@dataclass(frozen=True, slots=True)
class FreeDimension:
    """The place of a dimension that has no size, and a usual size for it."""

    place: str
    example: int

    def option(self, name: str) -> str:
        """Return the option of the command line that binds it."""
        return f"--dim {quote(f'{name}={self.example}')}"


@dataclass(slots=True)
class InputBinder:
    """Binds ``dims`` by name or as ``INPUT.AXIS``, and ``values`` by the name of an input."""

    table: TensorTable
    dims: Mapping[str, int]
    values: Mapping[str, Any]
    used: set[str] = field(default_factory=set)  # names of ``dims``
    free: dict[str, FreeDimension] = field(default_factory=dict)  # by name, of no size

    def bind(self, graph: Any) -> None:
        """Learn the type of every input of ``graph`` that is no weight. Raise for what is free."""
        where = self.table.where
        for name, size in self.dims.items():
            if not isinstance(size, int) or not 0 < size < 1 << 31:
                raise SpecError(f"{where}: dimension {name}={size}: expected 1 to 2^31 - 1")
        inputs = [tensor for tensor in graph.input if tensor.name not in self.table.values]
        self._check_values(inputs)
        for tensor in inputs:
            kind = self._type_of(tensor)
            if tensor.name in self.values:
                self.table.learn(tensor.name, self._value(tensor.name, kind))
            else:
                self._bind_all(tensor.name, kind)
                self.table.types[tensor.name] = kind
        if unused := [name for name in self.dims if name not in self.used]:
            raise SpecError(
                f"{where}: dimension {unused[0]!r:.200}: no input has a free one of that name"
            )
        if self.free:
            lines = [
                f"{dim.place} ({name!r:.200}) is free; bind it, as in {dim.option(name)}"
                for name, dim in self.free.items()
            ]
            options = " ".join(dim.option(name) for name, dim in self.free.items())
            lines += [f"all at once: {options}"] if len(lines) > 1 else []
            raise SpecError(f"{where}: " + "\n  ".join(lines))

    def _check_values(self, inputs: list[Any]) -> None:
        names = [tensor.name for tensor in inputs]
        if unknown := [name for name in self.values if name not in names]:
            raise SpecError(
                f"{self.table.where}: value of {unknown[0]!r:.200}: no input has that name; "
                f"expected one of {', '.join(names)!r:.300}"
            )

    def _type_of(self, proto: Any) -> Any:
        """Copy an input's type. Raises UnsupportedError for what is no tensor."""
        kind = self.table.onnx.TypeProto()
        kind.CopyFrom(proto.type)
        tensor = kind.HasField("tensor_type")
        if not tensor or not (kind.tensor_type.HasField("shape") or proto.name in self.values):
            raise UnsupportedError(
                f"{self.table.where}: input {proto.name!r:.200} is no tensor of known rank"
            )
        return kind

    def _bind_all(self, name: str, kind: Any) -> None:
        """Give free dimensions their size, or note them."""
        names = [dim.dim_param for dim in kind.tensor_type.shape.dim]
        for axis, dim in enumerate(kind.tensor_type.shape.dim):
            if not _is_free(dim):
                continue
            if (size := self._size(name, axis, dim)) is None:
                own = dim.dim_param not in ("", NO_NAME) and names.count(dim.dim_param) == 1
                label = dim.dim_param if own else f"{name}.{axis}"
                place = f"input {name!r:.200}: dimension {axis}"
                size_like = _example(kind.tensor_type, axis)
                self.free.setdefault(label, FreeDimension(place, size_like))
            dim.dim_value = size or 1

    def _size(self, name: str, axis: int, dim: Any) -> int | None:
        """Return what a free dimension is bound to; its own place counts more than a name."""
        for label in (f"{name}.{axis}", dim.dim_param):
            if label and label in self.dims:
                self.used |= {label, *({dim.dim_param} & self.dims.keys())}
                return self.dims[label]
        return self._sum(dim.dim_param)

    def _sum(self, text: str) -> int | None:
        """Return a size whose name is a sum of bound ones, as ``past + 1``; None for others."""
        names = [part.strip() for part in text.split("+")]
        sizes = [int(name) if name.isdecimal() else self.dims.get(name) for name in names]
        known = [size for size in sizes if size is not None]
        if len(names) == 1 or len(known) < len(sizes):
            return None
        self.used |= {*names} & self.dims.keys()
        return sum(known)

    def _value(self, name: str, kind: Any) -> Array:
        """Return the value of an input, of its type and shape."""
        onnx, bound = self.table.onnx, np.asarray(self.values[name])
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
        if bound.dtype.kind not in "biuf" or np.dtype(dtype).kind not in "biuf":
            raise self._fault(name, f"{self.values[name]!r:.80} is no number of type {dtype}")
        with np.errstate(all="ignore"):
            value = bound.astype(dtype)
        if value.dtype.kind != "f" and not np.array_equal(value, bound):
            raise self._fault(name, f"{self.values[name]!r:.80} is no {dtype}")
        shape = self._shape(name, kind, value)
        if value.size != prod(shape) and value.ndim:
            raise self._fault(name, f"{value.size} numbers for the shape {list(shape)}")
        self.table.check(name, shape, value.dtype)
        return value.reshape(shape) if value.ndim else np.broadcast_to(value, shape)

    def _shape(self, name: str, kind: Any, value: Array) -> tuple[int, ...]:
        """Return the shape of the input; where free dimensions are not bound, that of the value."""
        dims = kind.tensor_type.shape.dim
        if not kind.tensor_type.HasField("shape"):
            return value.shape
        sizes = [
            self._size(name, axis, dim) if _is_free(dim) else dim.dim_value
            for axis, dim in enumerate(dims)
        ]
        if None in sizes and len(sizes) == value.ndim:
            sizes = [
                actual if size is None else size
                for size, actual in zip(sizes, value.shape, strict=True)
            ]
        if None in sizes:
            raise self._fault(name, f"its shape {value.shape} has not the rank {len(sizes)}")
        return tuple(size for size in sizes if size is not None)

    def _fault(self, name: str, reason: str) -> SpecError:
        return SpecError(f"{self.table.where}: value of {name!r:.200}: {reason}")


def bound_inputs(
    model: ModelSource, dims: Mapping[str, int], values: Mapping[str, Any]
) -> dict[str, Array]:
    """Return the inputs that ``values`` binds as arrays of the model's types and shapes."""
    table = TensorTable(onnx_module(), str(model)[:200], newest_opset())
    graph = read(model, external=True).graph
    InputBinder(table, dims, values).bind(graph)
    return {name: table.values[name] for name in values}


def _example(tensor: Any, axis: int) -> int:
    """Return an example size of a free dimension: one image or text, of a usual size."""
    rank, real = len(tensor.shape.dim), tensor.elem_type in (_FLOAT, _FLOAT16)
    if axis == 0 or rank not in (2, 4) or (rank == 2 and real):
        return 1
    return SIDE if rank == 4 else WORDS


def _is_free(dim: Any) -> bool:
    """Tell whether the model leaves the size open: it has a name, -1, or nothing."""
    return not dim.HasField("dim_value") or dim.dim_value < 0


def load(
    model: ModelSource, dims: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None, *, external: bool = False,
    supported: Container[str] | None = None,
    most: Mapping[str, int] = MappingProxyType({}),
) -> Graph:  # fmt: skip
    """Return the graph of an ONNX model.

    ``dims`` binds its free dimensions, by name or as ``INPUT.AXIS``, ``values`` inputs to
    constants: numbers or arrays. ``most`` bounds sizes that data decides, by the name of a tensor.
    Raises SpecError for a file that is no model, a dimension that is
    free or of no use, shapes that contradict each other; RefusedNodesError with every node whose
    type is not in ``supported``.
    """
    where = str(model) if isinstance(model, str | PathLike) else IN_MEMORY
    parsed, arrays = read_apart(model, external=external)
    return graph_of(
        parsed, dims, values, supported=supported, where=where, arrays=arrays, most=most
    )


def graph_of(
    model: onnx.ModelProto, dims: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None, *, supported: Container[str] | None = None,
    where: str = "model", arrays: Mapping[str, Array] = MappingProxyType({}),
    most: Mapping[str, int] = MappingProxyType({}),
) -> Graph:  # fmt: skip
    """Return the graph of a model in memory that ``model_file.check_model`` accepts.

    ``arrays`` are those initialisers, by name, whose values the model lacks.
    """
    opset, functions = opset_of(model, where), functions_of(model)
    opsets = [_function_opset(function, opset) for function in functions.values()]
    if opsets and max(opsets) > newest_opset():
        raise UnsupportedError(f"{where}: a function follows opset {max(opsets)} of the operators")
    table = TensorTable(onnx_module(), where, max(KNOWN, opset, *opsets))
    model = widen_float16(model)
    for tensor in model.graph.initializer:
        array = arrays.get(tensor.name)
        table.learn(tensor.name, table.array(tensor) if array is None else array)
    InputBinder(table, dims or {}, values or {}).bind(model.graph)
    reader = Reader(table, supported, expansion_of, functions, dynamic_dims_of, opset, most)
    reader.made |= table.types.keys()
    reader.taken |= reader.made | {name for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        reader.add(node)
    return _finish(reader, model.graph)


def expansion_of(reader: Reader, proto: Any, last: bool) -> Expansion | None:
    """Return the expansion of a node, if any; ``last``: where polysci has no operator for it."""
    if last:
        return (
            expansion_of_counts(reader, proto)
            or expansion_of_sizes(reader, proto)
            or expansion_by_schema(reader, proto)
        )
    if proto.domain in DOMAINS and (
        newer := opset_upgrade(reader, proto) or expansion_of_auto_pad(reader, proto)
    ):
        return newer
    if dynamic := expansion_of_dynamic(reader, proto):
        return dynamic
    if function := expansion_by_function(reader, proto):
        return function
    if foreign := expansion_of_microsoft(reader, proto) or expansion_of_classical(reader, proto):
        return foreign
    if proto.domain not in DOMAINS:
        return None
    if control := _CONTROL.get(proto.op_type):
        return control
    return expansion_of_sequence(reader, proto)


_CONTROL: Mapping[str, Expansion] = MappingProxyType(
    {"If": expand_if, "Loop": expand_loop, "Scan": expand_scan}
)


def _finish(reader: Reader, graph: Any) -> Graph:
    """Return the graph without what no output needs."""
    table, outputs = reader.table, [tensor.name for tensor in graph.output]
    dynamic_dims = {
        name: reader.dynamic_dims[name] for name in outputs if name in reader.dynamic_dims
    }
    outputs += dict.fromkeys(mark.count for mark in dynamic_dims.values())
    sizes = add_sizes(reader, _needed(reader, outputs)[0])
    outputs += [sizes.output] * bool(sizes.most)
    needed, kept = _needed(reader, outputs)
    if refusals := [*_refusals(reader, kept, needed)]:
        raise RefusedNodesError(table.where, refusals)
    if unknown := [name for name in reader.most if name not in reader.bounded]:
        raise SpecError(
            f"{table.where}: most: {unknown[0]!r:.200}: data decides the length of no tensor of "
            "that name"
        )
    if untyped := [name for name in outputs if name not in table.types]:
        what = "a sequence" if untyped[0] in reader.sequences else "no tensor"
        raise SpecError(f"{table.where}: output {untyped[0]!r:.200} is {what}")
    results = [name for node in kept for name in node.outputs if name in table.types]
    sources = [tensor.name for tensor in graph.input if tensor.name not in table.values]
    names = dict.fromkeys([*sources, *needed, *results])
    return Graph(
        graph.name,
        tuple(table.tensor(name) for name in sources),
        tuple(table.tensor(name) for name in outputs),
        tuple(kept),
        {name: table.values[name] for name in names if name in table.values},
        {name: table.tensor(name) for name in names},
        dynamic_dims,
        data_sizes=sizes,
        dequantised={name: row for name, row in reader.dequantised.items() if name in needed},
    )


def _needed(reader: Reader, outputs: Iterable[str]) -> tuple[set[str], list[Node]]:
    """Return the tensors that outputs need, and the nodes that make them, in order."""
    needed, kept = set(outputs), list[Node]()
    for node in reversed(reader.nodes):
        if needed & {name for name in node.outputs if name}:
            needed.update(name for name in node.inputs if name)
            kept.append(node)
    return needed, kept[::-1]


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
        elif typed or not ((op := onnx_name(node.op)) in _CONTROL or _schema_with_body(reader, op)):
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
