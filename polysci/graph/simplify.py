"""The passes of graphs: the same network with fewer operations."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np

from polysci.graph.graph import Graph, Node, rebuild
from polysci.graph.passes.affine import with_affine, with_affine_together, with_folded_weights
from polysci.graph.passes.integer_products import RESHAPES, with_integer_products, with_known_zeros
from polysci.numerics.arrays import Array
from polysci.program.passes.row import Pass, PassWatch, plain, run_table


def without_copies(graph: Graph) -> Graph:
    """Identity and Dropout hand on their input."""
    same: dict[str, str] = {}
    nodes = list[Node]()
    kept = {tensor.name for tensor in graph.outputs}
    read = kept | set(graph.readers())
    for node in graph.nodes:
        node = replace(node, inputs=tuple(same.get(name, name) for name in node.inputs))
        source = node.input(0)
        idle = node.op == "identity" or (node.op == "dropout" and not _trains(graph, node))
        if idle and not read & set(node.outputs[1:]) and node.outputs[0] not in kept:
            same[node.outputs[0]] = source
        else:
            nodes.append(node)
    return rebuild(graph, nodes)


def _trains(graph: Graph, node: Node) -> bool:
    """Return whether a Dropout drops anything: where its third input is, or may be, true."""
    asked = node.input(2)
    value = graph.constant(asked) if asked else np.zeros(())
    return value is None or bool(value.any())


def with_fixed_shapes(graph: Graph) -> Graph:
    """Flatten, Squeeze and Unsqueeze become Reshape, to the shape that is known."""
    constants, nodes = dict[str, Array](), list[Node]()
    for node in graph.nodes:
        if node.op in RESHAPES and not _has_fixed_shape(graph, node):
            name, shape = graph.part_name(node, "shape"), graph.tensors[node.outputs[0]].shape
            constants[name] = np.array(shape, np.int64)
            exact = MappingProxyType({"allowzero": 1} if graph.opset >= 14 else {})
            node = Node("reshape", (node.inputs[0], name), node.outputs, exact, node.name)
        nodes.append(node)
    return rebuild(graph, nodes, constants)


def with_moved_constants(graph: Graph) -> Graph:
    """Reshape and Concat of constants become constants, as of parameters that a layer joins."""
    constants, kept = dict(graph.constants), {tensor.name for tensor in graph.outputs}
    nodes = list[Node]()
    for node in graph.nodes:
        values = [constants[name] for name in node.inputs if name in constants]
        moves = node.op in ("reshape", "concat") and node.outputs[0] not in kept
        if not moves or len(values) < len(node.inputs):
            nodes.append(node)
        elif node.op == "concat":
            constants[node.outputs[0]] = np.concatenate(values, node.attributes["axis"])
        else:
            constants[node.outputs[0]] = values[0].reshape(graph.tensors[node.outputs[0]].shape)
    return rebuild(graph, nodes, constants)


def _has_fixed_shape(graph: Graph, node: Node) -> bool:
    """Return whether a node is a Reshape that is told, as a constant, the shape of its output."""
    shape = graph.constant(node.input(1)) if node.op == "reshape" else None
    return shape is not None and np.array_equal(shape, graph.tensors[node.outputs[0]].shape)


FIRST_PASSES: Final[tuple[Pass, ...]] = (
    plain("integer products", "dequantised factors multiply as 8-bit numbers",
          with_integer_products),
    plain("known zeros", "zeros of 8-bit factors leave the products", with_known_zeros),
)  # fmt: skip
# They run until none of them changes the graph.
REPEATED_PASSES: Final[tuple[Pass, ...]] = (
    plain("copies", "Identity and idle Dropout hand on their input",
          without_copies),
    plain("fixed shapes", "Flatten, Squeeze and Unsqueeze become Reshape", with_fixed_shapes),
    plain("moved constants", "Reshape and Concat of constants are computed",
          with_moved_constants),
    plain("affine", "what scales and shifts channels is x * a + b",
          with_affine),
    plain("affine pairs", "two x * a + b in a row become one", with_affine_together),
    plain("folded weights", "x * a + b goes into the weights before it",
          with_folded_weights),
)  # fmt: skip


@np.errstate(all="ignore")  # infinity, and no number, are constants as well
def simplify(graph: Graph, watch: PassWatch | None = None) -> Graph:
    """Return the graph after all passes; ``watch`` hears of each."""
    graph, _ = run_table(FIRST_PASSES, graph, watch=watch)
    while True:
        before = graph.nodes
        graph, _ = run_table(REPEATED_PASSES, graph, watch=watch)
        if graph.nodes == before:
            return graph
