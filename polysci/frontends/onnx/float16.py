"""Models of float16 as models of f32: weights are widened, inputs and outputs converted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from polysci.frontends.onnx.model_file import DOMAINS, onnx_module
from polysci.frontends.onnx.renaming import nodes_below, rename_nodes, subgraphs

# Attributes that hold an element type.
TYPES = ("to", "dtype", "output_dtype", "output_datatype", "softmax_precision")


def widen_halves(model: Any) -> Any:
    """Return the model with all numbers of float16 as f32 but for its inputs and outputs.

    A Cast to float16 rounds; all else is computed in f32 and not rounded. A model without float16
    is returned as it is, another one as a copy.
    """
    half, real = onnx_module().TensorProto.FLOAT16, onnx_module().TensorProto.FLOAT
    if not _has_halves(model, half):
        return model
    wide = type(model)()
    wide.CopyFrom(model)
    names = _convert_border(wide.graph, half, real)
    for graph in _graphs(wide):
        for tensor in graph.initializer:
            _widen_tensor(tensor, half)
    for graph in chain.from_iterable(map(subgraphs, _nodes(wide))):
        for value in chain(graph.input, graph.output):
            if value.type.tensor_type.elem_type == half:
                value.type.tensor_type.elem_type = real
    for nodes in (wide.graph.node, *(function.node for function in wide.functions)):
        _widen_nodes(nodes, half, real)
    _add_casts(wide.graph, names, half, real)
    return wide


def _has_halves(model: Any, half: int) -> bool:
    """Tell whether a tensor, an input, an output or an attribute is of float16."""
    kinds = [tensor.data_type for graph in _graphs(model) for tensor in graph.initializer]
    borders = chain(model.graph.input, model.graph.output)
    kinds += [value.type.tensor_type.elem_type for value in borders]
    for node in _nodes(model):
        for attribute in node.attribute:
            kinds.append(attribute.t.data_type)
            kinds += [attribute.i] if attribute.name in TYPES else []
    return half in kinds


def _graphs(model: Any) -> Iterator[Any]:
    """Yield the graph of a model, and those inside its nodes."""
    yield model.graph
    for node in _nodes(model):
        yield from subgraphs(node)


def _nodes(model: Any) -> Iterator[Any]:
    return nodes_below(chain(model.graph.node, *(function.node for function in model.functions)))


def _convert_border(graph: Any, half: int, real: int) -> dict[str, str]:
    """Give inputs and outputs of float16 another name inside; return old name -> new name."""
    known = {tensor.name for tensor in graph.initializer}
    made = {name for node in nodes_below(graph.node) for name in node.output}
    taken = known | made | {value.name for value in graph.input}
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
            _widen_tensor(attribute.t, half)
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
