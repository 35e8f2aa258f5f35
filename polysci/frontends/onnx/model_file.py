"""An ONNX file as a model that can be trusted, its nodes renamed, its float16 numbers widened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from polysci.border.files import open_named, read_whole
from polysci.errors import SpecError, UnsupportedError, cut_line
from polysci.frontends.onnx.large_tensors import BYTE, split_file, take_array
from polysci.numerics import arrays as aligned
from polysci.numerics.arrays import Array

if TYPE_CHECKING:
    import onnx


ModelSource: TypeAlias = "str | PathLike[str] | bytes | onnx.ModelProto"
IN_MEMORY = "model in memory"  # what messages call it
INSTALL = "pip install 'polysci[onnx]'"
MOST_FILE = (1 << 31) - 1  # bytes; a protocol buffer cannot be larger
MOST_NODES = 100_000
DOMAINS = ("", "ai.onnx")
KNOWN = 23  # the opset whose attributes the operators here have; nodes of older ones are replaced
NEWEST = 28  # the last opset of models


def onnx_module() -> Any:
    """Import the onnx package. Raises UnsupportedError where it is not installed."""
    try:
        import onnx
    except ImportError as error:
        raise UnsupportedError(f"reading an ONNX model needs onnx ({error}): {INSTALL}") from None
    return onnx


def newest_opset() -> int:
    """Return the last version of operators that the installed onnx has, and models may follow."""
    return min(NEWEST, int(onnx_module().defs.onnx_opset_version()))


def read(model: ModelSource, *, external: bool = False) -> onnx.ModelProto:
    """Read and check a model; ``external``: weights may lie in files beside that of a path.

    Raises SpecError for a file that cannot be read or a model that breaks ONNX's rules,
    UnsupportedError for what is right but not read here: sparse weights, other opsets; TypeError
    for what is neither a path nor a model.
    """
    if isinstance(model, str | PathLike):
        return _read_file(Path(model), external, None)
    memory = _in_memory(onnx_module(), model)
    check_model(memory, IN_MEMORY)
    for tensor in _tensors(memory):
        if _lies_outside(onnx_module(), tensor):
            raise SpecError(
                f"{IN_MEMORY}: {tensor.name!r} lies in another file; give the path of the model, "
                "or load its external data first"
            )
    return memory


def read_apart(
    model: ModelSource, *, external: bool = False
) -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """Read and check a model as ``read`` does; large initialisers of a file are arrays by name.

    The model then has no bytes of theirs.
    """
    arrays = dict[str, Array]()
    if isinstance(model, str | PathLike):
        return _read_file(Path(model), external, arrays), arrays
    return read(model, external=external), arrays


def _in_memory(onnx: Any, model: object) -> onnx.ModelProto:
    if isinstance(model, bytes):
        return _parse(onnx, model, IN_MEMORY)
    if not isinstance(model, onnx.ModelProto):
        raise TypeError(
            f"model: expected a path, an onnx.ModelProto or its bytes, got {type(model).__name__}"
        )
    return model


def _read_file(path: Path, external: bool, arrays: dict[str, Array] | None) -> onnx.ModelProto:
    """Return the model of a file, without the initialisers that ``arrays`` takes, if it is one."""
    onnx = onnx_module()
    model, large = _parse_file(onnx, path, apart=arrays is not None)
    check_model(model, str(path))
    initialisers, tensors = len(model.graph.initializer), [*_tensors(model)]
    for number, tensor in enumerate(tensors):
        if not _lies_outside(onnx, tensor):
            raw = large.get(number)
        elif external:
            raw = _load(onnx, path, tensor)
        else:
            raise SpecError(
                f"{path}: {tensor.name!r} lies in another file; external data is read on request"
            )
        if raw is not None and not (
            arrays is not None and number < initialisers and take_array(tensor, raw, arrays)
        ):
            tensor.raw_data = raw.tobytes()
    return model


def _parse_file(
    onnx: Any, path: Path, *, apart: bool
) -> tuple[onnx.ModelProto, Mapping[int, Array]]:
    """Return the model of a file, and if ``apart`` bytes of initialisers that it lacks."""
    try:
        with open_named(path) as file:
            parts = split_file(file, MOST_FILE) if apart else None
            data, large = parts or (read_whole(file, MOST_FILE), {})
    except OSError as error:
        raise SpecError(f"{cut_line(path)}: cannot be read: {error.strerror}") from None
    return _parse(onnx, data, str(path)), large


def _parse(onnx: Any, data: bytes, where: str) -> onnx.ModelProto:
    try:
        model: onnx.ModelProto = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's own, which is no part of onnx
        raise SpecError(f"{where}: no ONNX model, or a part of one: {error}") from None
    return model


def check_model(model: onnx.ModelProto, where: str) -> None:
    """Raise for a model whose graph is not whole; ``where`` goes before the error."""
    check_text(model, where)
    graph = model.graph
    if not graph.node or not graph.output:
        raise SpecError(f"{where}: no ONNX model: its graph has no nodes or no outputs")
    if len(graph.node) > MOST_NODES:
        raise SpecError(f"{where}: {len(graph.node)} nodes; expected at most {MOST_NODES}")
    if graph.sparse_initializer:
        raise UnsupportedError(f"{where}: the model has sparse weights")
    opset_of(model, where)
    _check_names(graph, where)


def opset_of(model: onnx.ModelProto, where: str) -> int:
    """Return the version of ONNX's operators that a model follows."""
    versions = {int(entry.version) for entry in model.opset_import if entry.domain in DOMAINS}
    if not versions:
        raise SpecError(f"{where}: no ONNX model: it names no version of the operators")
    if len(versions) > 1:
        raise SpecError(f"{where}: several versions of the operators: {sorted(versions)}")
    (opset,) = versions
    newest = newest_opset()
    if not 1 <= opset <= newest:
        raise UnsupportedError(f"{where}: opset {opset} of the operators; expected 1 to {newest}")
    return opset


def _check_names(graph: onnx.GraphProto, where: str) -> None:
    """Raise unless every name has one maker, before all of its readers."""
    known: set[str] = set()
    for tensors, what in ((graph.input, "inputs"), (graph.initializer, "initialisers")):
        names = [tensor.name for tensor in tensors]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise SpecError(f"{where}: two {what} are named {twice!r:.200}")
        known.update(names)
    for node in graph.node:
        title = f"{node.op_type} {node.name or ', '.join(node.output)}"
        if missing := [name for name in node.input if name and name not in known]:
            raise SpecError(
                f"{where}: {title!r:.200} reads {missing[0]!r:.200}, which nothing before it makes"
            )
        results = [name for name in node.output if name]
        if twice := [name for name in results if name in known or results.count(name) > 1]:
            raise SpecError(f"{where}: {title!r:.200} makes {twice[0]!r:.200} a second time")
        known.update(results)
    if lost := [output.name for output in graph.output if output.name not in known]:
        raise SpecError(f"{where}: nothing makes the output {lost[0]!r:.200}")


def check_text(message: Any, where: str, path: str = "") -> None:
    """Raise SpecError for a string that is not UTF-8, in any field of ``message``."""
    for field, value in message.ListFields():
        name = f"{path}.{field.name}" if path else field.name
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        values = (
            [value] if isinstance(value, str | bytes) or hasattr(value, "ListFields") else value
        )
        for index, part in enumerate(values):
            place = name if values is not value else f"{name}[{index}]"
            if field.type == field.TYPE_MESSAGE:
                check_text(part, where, place)
            elif isinstance(part, bytes):  # what protobuf gives for what it cannot decode
                raise SpecError(f"{where}: {place} = {part!r:.80}: expected UTF-8 text")


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a model, those of subgraphs and functions too."""
    yield from model.graph.initializer
    for node in _nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for graph in subgraphs(node):
            yield from graph.initializer


def _lies_outside(onnx: Any, tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _load(onnx: Any, model: Path, tensor: onnx.TensorProto) -> Array:
    """Return a tensor's bytes from a regular file in the model's own folder or below it.

    The tensor then lies in no other file.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    where, home = f"{model}: external data of {tensor.name!r:.200}", model.parent.resolve()
    try:
        place = entries["location"]
        start, length = int(entries.get("offset", 0)), int(entries.get("length", -1))
        path = (home / place).resolve()
        if Path(place).is_absolute() or not path.is_relative_to(home):
            raise SpecError(f"{where}: {place!r:.200} is outside the model's folder")
        if not path.is_file() or start < 0:
            raise SpecError(f"{where}: {place!r:.200} is no file, or its offset is negative")
        size = path.stat().st_size
        if start + max(length, 0) > size:
            raise SpecError(
                f"{where}: bytes {start} to {start + max(length, 0)}; {place!r:.200} has {size}"
            )
        with path.open("rb") as file:
            file.seek(start)
            raw = aligned.empty((length if length >= 0 else size - start,), dtype=BYTE)
            if file.readinto(raw.data) < raw.nbytes:
                raise ValueError(f"{place!r:.200} ends before them")
    except (KeyError, ValueError, OSError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"{where}: {error}") from None
    del tensor.external_data[:]
    tensor.data_location = onnx.TensorProto.DEFAULT
    return raw


@dataclass(frozen=True, slots=True)
class Body:
    """Nodes that take the place of one: ``results`` are the names of what they compute."""

    nodes: Sequence[Any]
    results: Sequence[str]
    initializers: Sequence[Any] = ()

    @property
    def made(self) -> dict[str, None]:
        """Return the results of the nodes, in order."""
        return dict.fromkeys(name for node in self.nodes for name in node.output if name)

    @property
    def names(self) -> dict[str, None]:
        """Return the names that are defined inside."""
        return dict.fromkeys(tensor.name for tensor in self.initializers) | self.made


def body_of_graph(graph: Any) -> Body:
    """Return the body of a subgraph."""
    return Body(graph.node, [value.name for value in graph.output], graph.initializer)


def rename_nodes(nodes: Iterable[Any], names: Mapping[str, str]) -> list[Any]:
    """Copy nodes with other names of tensors, in their subgraphs too."""
    copies = []
    for node in nodes:
        copy = type(node)()
        copy.CopyFrom(node)
        _rename(copy, names)
        copies.append(copy)
    return copies


def _rename(node: Any, names: Mapping[str, str]) -> None:
    node.input[:] = [names.get(name, name) for name in node.input]
    node.output[:] = [names.get(name, name) for name in node.output]
    for graph in subgraphs(node):
        body = body_of_graph(graph)
        own = {*body.names, *(value.name for value in graph.input)}
        outer = {name: new for name, new in names.items() if name not in own}
        for inner in graph.node:
            _rename(inner, outer)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)


def bind_attributes(nodes: Iterable[Any], values: Mapping[str, Any]) -> None:
    """Replace attributes that refer to those of a function; what has no value is left out."""
    for node in nodes:
        for attribute in list(node.attribute):
            if not attribute.ref_attr_name:
                continue
            name, value = attribute.name, values.get(attribute.ref_attr_name)
            if value is None:
                node.attribute.remove(attribute)
            else:
                attribute.CopyFrom(value)
                attribute.name = name
        for graph in subgraphs(node):
            bind_attributes(graph.node, values)


def subgraphs(node: Any) -> Iterator[Any]:
    """Yield the graphs among a node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def nodes_below(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield nodes and those of their subgraphs."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from nodes_below(graph.node)


# Attributes that hold an element type.
TYPES = ("to", "dtype", "output_dtype", "output_datatype", "softmax_precision")


def widen_float16(model: Any) -> Any:
    """Return the model with all numbers of float16 as f32 but for its inputs and outputs.

    A Cast to float16 rounds; all else is computed in f32 and not rounded. A model without float16
    is returned as it is, another one as a copy.
    """
    half, real = onnx_module().TensorProto.FLOAT16, onnx_module().TensorProto.FLOAT
    if not _has_float16(model, half):
        return model
    wide = type(model)()
    wide.CopyFrom(model)
    names = _convert_border(wide.graph, half, real)
    for tensor in _tensors(wide):
        _widen_tensor(tensor, half)
    for graph in chain.from_iterable(map(subgraphs, _nodes(wide))):
        for value in chain(graph.input, graph.output):
            if value.type.tensor_type.elem_type == half:
                value.type.tensor_type.elem_type = real
    for nodes in (wide.graph.node, *(function.node for function in wide.functions)):
        _widen_nodes(nodes, half, real)
    _add_casts(wide.graph, names, half, real)
    return wide


def _has_float16(model: Any, half: int) -> bool:
    """Tell whether a tensor, an input, an output or an attribute is of float16."""
    kinds = [tensor.data_type for tensor in _tensors(model)]
    borders = chain(model.graph.input, model.graph.output)
    kinds += [value.type.tensor_type.elem_type for value in borders]
    attributes = chain.from_iterable(node.attribute for node in _nodes(model))
    return half in kinds or any(part.i == half for part in attributes if part.name in TYPES)


def _nodes(model: Any) -> Iterator[Any]:
    return nodes_below(chain(model.graph.node, *(function.node for function in model.functions)))


def _convert_border(graph: Any, half: int, real: int) -> dict[str, str]:
    """Give inputs and outputs of float16 another name inside; return old name -> new name."""
    known = {tensor.name for tensor in graph.initializer}
    results = {name for node in nodes_below(graph.node) for name in node.output}
    taken = known | results | {value.name for value in graph.input}
    names: dict[str, str] = {}
    for value in chain(graph.input, graph.output):
        if value.type.tensor_type.elem_type != half:
            continue
        if value.name in known:
            value.type.tensor_type.elem_type = real
        elif value.name not in names:
            names[value.name] = _fresh(f"{value.name}.f32", taken)
            taken.add(names[value.name])
    renamed = rename_nodes(graph.node, names)
    del graph.node[:]
    graph.node.extend(renamed)
    return names


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _widen_tensor(tensor: Any, half: int) -> None:
    if tensor.data_type == half:
        helper = onnx_module().numpy_helper
        wide = helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(helper.from_array(wide, tensor.name))


def _widen_nodes(nodes: Any, half: int, real: int) -> None:
    """Widen constants and types of nodes, in their subgraphs too; casts convert and back."""
    changed = list[Any]()
    for node in nodes:
        copy = type(node)()
        copy.CopyFrom(node)
        changed += _widen_cast(copy, half, real)
        for attribute in copy.attribute:
            cast = copy.op_type == "Cast" and copy.domain in DOMAINS
            if attribute.name in TYPES and attribute.i == half and not cast:
                attribute.i = real
        for graph in subgraphs(copy):
            _widen_nodes(graph.node, half, real)
    del nodes[:]
    nodes.extend(changed)


def _widen_cast(node: Any, half: int, real: int) -> list[Any]:
    """Return the node itself; a Cast to float16 gets one behind it, back to f32."""
    kinds = [attribute.i for attribute in node.attribute if attribute.name == "to"]
    if node.op_type != "Cast" or node.domain not in DOMAINS or kinds != [half]:
        return [node]
    result, rounded = node.output[0], f"{node.output[0]}.f16"
    node.output[0] = rounded
    return [node, onnx_module().helper.make_node("Cast", [rounded], [result], to=real)]


def _add_casts(graph: Any, names: Mapping[str, str], half: int, real: int) -> None:
    """Add casts behind inputs of float16, and before such outputs."""
    inputs = {value.name for value in graph.input}
    before = [_cast(name, new, real) for name, new in names.items() if name in inputs]
    after = [_cast(new, name, half) for name, new in names.items() if name not in inputs]
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)


def _cast(source: str, target: str, kind: int) -> Any:
    return onnx_module().helper.make_node("Cast", [source], [target], target, to=kind)
