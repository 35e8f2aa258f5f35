"""The pass that makes functions of one number of 8 bits tables of 256 numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from polysci.graph.builder import GraphBuilder, rewrite_nodes
from polysci.graph.graph import ELEMENTS, Graph, Node, rebuild
from polysci.graph.passes.integer_products import linear_of
from polysci.loop_ir.expressions import Computed, Load, axis
from polysci.numerics.arrays import Array
from polysci.numerics.scalar_functions import FUNCTIONS, apply_numpy

SIZE: Final = 256
ROUNDINGS: Final = ("quantize", "dequantize")
LEAST: Final = 1024  # elements of a tensor: fewer are computed before a table is in the cache
# Operators of single elements that vectors compute in a few instructions, and those that are slow:
# a table is faster where one of these is among them.
QUICK: Final = frozenset(
    {"add", "sub", "mul", "div", "neg", "abs", "relu", "clip", "min", "max", "sqrt", "identity",
     "leaky", "hard_sigmoid", "hard_swish", "floor", "ceil"}
)  # fmt: skip
SLOW: Final = frozenset(
    {"erf", "exp", "log", "pow", "tanh", "sigmoid", "gelu", "swish", "elu", "celu",
     "softplus", "softsign", "mish", "sin", "cos", "reciprocal"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Source:
    """The 8-bit tensor whose element in the same place is all that an element depends on."""

    tensor: str
    slow: bool = False


def make_byte_tables(graph: Graph) -> Graph:
    """Numbers of 8 bits that depend on one such number alone, by slow functions, in a table."""
    sources = _sources(graph)
    if not any(node.op == "quantize" and _pays(graph, node, sources) for node in graph.nodes):
        return graph
    graph = rewrite_nodes(graph, partial(_replace, graph, sources))
    return rebuild(graph, graph.nodes)


def _pays(graph: Graph, node: Node, sources: Mapping[str, _Source]) -> bool:
    source = sources.get(node.outputs[0])
    return source is not None and source.slow and graph.tensors[node.outputs[0]].size >= LEAST


def _sources(graph: Graph) -> dict[str, _Source]:
    """Return the sources of tensors that have one."""
    sources = dict[str, _Source]()
    for node in graph.nodes:
        if source := _source(graph, node, sources):
            sources[node.outputs[0]] = source
    return sources


def _source(graph: Graph, node: Node, sources: Mapping[str, _Source]) -> _Source | None:
    if node.op in ROUNDINGS:
        if linear_of(graph, node) is None or node.inputs[0] in graph.constants:
            return None
        start = _Source(node.inputs[0]) if node.op == "dequantize" else None
        return sources.get(node.inputs[0], start)
    if node.op not in QUICK | SLOW or len(node.outputs) != 1:
        return None
    if node.op in FUNCTIONS and len(node.inputs) != len(FUNCTIONS[node.op].inputs):
        return None  # Min of three
    computed = [name for name in node.inputs if name and name not in graph.constants]
    parts = {sources.get(name) for name in computed}
    shape = graph.tensors[node.outputs[0]].shape
    alike = all(graph.tensors[name].shape == shape for name in computed)
    small = all(
        graph.constants[name].size == 1 for name in node.inputs if name in graph.constants
    )  # fmt: skip
    tensors = {part.tensor for part in parts if part}
    if None in parts or len(tensors) != 1 or not alike or not small:
        return None
    return _Source(tensors.pop(), node.op in SLOW or any(part.slow for part in parts if part))


def _replace(
    graph: Graph, sources: Mapping[str, _Source], growing: GraphBuilder, node: Node
) -> str:
    """Read a table in place of a QuantizeLinear; an empty name where the node stays."""
    if node.op != "quantize" or not _pays(graph, node, sources):
        return ""
    source, y = sources[node.outputs[0]], graph.tensors[node.outputs[0]]
    table = _table(graph, source.tensor, node)
    if table is None:
        return ""
    element = Load("0", tuple(map(axis, range(len(y.shape)))))
    names = (source.tensor, growing.constant(table))
    expr = Load("1", (Computed(element, SIZE),))
    return growing.add(ELEMENTS, names, y.shape, y.dtype, expr=expr)


def _table(graph: Graph, source: str, last: Node) -> Array | None:
    """Return what a node makes of each number; a negative one counts from the table's end.

    None where that is no number.
    """
    makers, dtype = graph.makers(), np.dtype(graph.tensors[source].dtype)
    known = {source: np.arange(SIZE, dtype=np.uint8).view(dtype).astype(np.float64)}

    def value(name: str) -> Array:
        if name in graph.constants:
            return graph.constants[name].reshape(()).astype(np.float64)
        if name not in known:
            known[name] = _values(graph, makers[name], value)
        return known[name]

    with np.errstate(all="ignore"):
        values = value(last.outputs[0])
    if np.isnan(values).any():
        return None
    return np.ascontiguousarray(values.astype(graph.tensors[last.outputs[0]].dtype))


def _values(graph: Graph, node: Node, value: Callable[[str], Array]) -> Array:
    """Return the values of a node, in f64."""
    x = value(node.inputs[0])
    linear = linear_of(graph, node) if node.op in ROUNDINGS else None
    if linear:
        scale, zero = float(linear.scale), int(linear.zero)
        if node.op == "dequantize":
            return np.asarray((x - zero) * scale)
        limits = np.iinfo(linear.zero.dtype)
        return np.asarray(np.clip(np.rint(x / scale) + zero, limits.min, limits.max))
    if node.op == "identity":
        return x
    if node.op == "clip":
        low, high = (
            value(name) if name else np.asarray(none)
            for name, none in ((node.input(1), -np.inf), (node.input(2), np.inf))
        )
        return np.asarray(np.minimum(np.maximum(x, low), high))
    row = FUNCTIONS[_function(node)]
    numbers = [np.asarray(float(node.attributes.get(*own))) for own in row.parameters.items()]
    return apply_numpy(row.name, *map(value, node.inputs), *numbers)


def _function(node: Node) -> str:
    tanh = node.op == "gelu" and node.attributes.get("approximate", "none") == "tanh"
    return "gelu_tanh" if tanh else node.op
