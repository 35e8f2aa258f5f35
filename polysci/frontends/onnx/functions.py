"""Operators that are defined by others: a model's own functions, and those of ONNX's schemas."""

from __future__ import annotations

from functools import partial
from typing import Any

from polysci.frontends.onnx.model_file import DOMAINS, KNOWN, is_implemented
from polysci.frontends.onnx.reader import Expansion, ExpansionError, Reader
from polysci.frontends.onnx.renaming import Body, bind_attributes, rename_nodes
from polysci.graph.operators import operator_of_onnx


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
    newer = _newer_parts(reader, proto)
    if reader.supported is None or (
        operator_of_onnx(proto.op_type) in reader.supported and not newer
    ):
        return None
    opset = is_implemented(proto.op_type, reader.table.opset)
    schema = reader.table.onnx.defs.get_schema(proto.op_type, opset)
    if not (schema.has_function or schema.has_context_dependent_function):
        if newer:
            raise ExpansionError(f"{', '.join(newer)}: newer than opset {KNOWN}")
        return None
    return partial(_expand_schema, schema=schema)


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


def has_definition(reader: Reader, op: str) -> bool:
    """Tell whether ONNX defines an operator by others."""
    defs = reader.table.onnx.defs
    if not defs.has(op):
        return False
    schema = defs.get_schema(op, is_implemented(op, reader.table.opset))
    return bool(schema.has_function or schema.has_context_dependent_function)


def _expand_own(reader: Reader, proto: Any, *, function: Any) -> None:
    for node in function.node:
        _check_version(reader, function, node)
    defaults = {attribute.name: attribute for attribute in function.attribute_proto}
    _call(reader, proto, function, defaults)


def _check_version(reader: Reader, function: Any, node: Any) -> None:
    """Refuse a function of another version of the operators, unless they are the same in both."""
    defs = reader.table.onnx.defs
    if node.domain not in DOMAINS or not defs.has(node.op_type):
        return
    versions = [entry.version for entry in function.opset_import if entry.domain in DOMAINS]
    version = max(versions, default=reader.table.opset)
    pair = {
        defs.get_schema(node.op_type, min(opset, defs.onnx_opset_version())).since_version
        for opset in (version, reader.table.opset)
    }
    if len(pair) > 1:
        raise ExpansionError(
            f"its function follows opset {version}, the model opset {reader.table.opset}, and "
            f"{node.op_type} differs"
        )


def _expand_schema(reader: Reader, proto: Any, *, schema: Any) -> None:
    function = _definition(reader, proto, schema)
    if function is None or not function.node:
        raise ExpansionError(f"ONNX has no definition of it for opset {reader.table.opset}")
    defaults = {
        name: attribute.default_value
        for name, attribute in schema.attributes.items()
        if attribute.default_value.type
    }
    _call(reader, proto, function, defaults)


def _definition(reader: Reader, proto: Any, schema: Any) -> Any:
    """Return the newest body that the model's version of the operators may use.

    That of a later opset, whose operators are the same in both, if there is none.
    """
    onnx, opset = reader.table.onnx, is_implemented(proto.op_type, reader.table.opset)
    versions = schema.function_opset_versions
    if versions:
        version = max([version for version in versions if version <= opset] or [min(versions)])
        data = schema.get_function_with_opset_version(version)
        function = onnx.FunctionProto.FromString(data)
        for node in function.node if version > opset else ():
            _check_version(reader, function, node)
        return function
    versions = schema.context_dependent_function_opset_versions
    fitting = [version for version in versions if version <= opset]
    if not fitting:
        return None
    empty = onnx.TypeProto()
    kinds = [reader.table.types[name] if name else empty for name in proto.input]
    data = schema.get_context_dependent_function_with_opset_version(
        max(fitting), proto.SerializeToString(), [kind.SerializeToString() for kind in kinds]
    )
    return onnx.FunctionProto.FromString(data)


def _call(reader: Reader, proto: Any, function: Any, defaults: dict[str, Any]) -> None:
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
    reader.inline(body, names, outputs, proto.name or proto.output[0])
