"""The passes of graphs: the same network with fewer operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np

from polysci.graph.graph import AFFINE, Graph, Node, rebuild
from polysci.graph.passes.integer_products import RESHAPES, with_integer_products, with_known_zeros
from polysci.numerics.arrays import Array
from polysci.program.passes.row import Pass, PassWatch, plain, run_table


def with_affine(graph: Graph) -> Graph:
    """Batch normalisation, and sums and products with a constant a channel, become AFFINE."""
    constants, nodes = dict[str, Array](), list[Node]()
    for node in graph.nodes:
        affine = _affine_of(graph, node)
        if affine:
            x, scale, shift = affine
            names = (graph.part_name(node, "scale"), graph.part_name(node, "shift"))
            constants |= zip(names, (scale, shift), strict=True)
            node = Node(AFFINE, (x, *names), node.outputs[:1], name=node.name)
        nodes.append(node)
    return rebuild(graph, nodes, constants)


def _affine_of(graph: Graph, node: Node) -> tuple[str, Array, Array] | None:
    """x, scale and shift of a node that is ``x * scale + shift``, a number a channel."""
    if not node.inputs or not node.outputs[0]:
        return None
    if graph.tensors[node.outputs[0]].dtype != "float32":
        return None
    if node.op == "batch_norm":
        parts = [graph.constant_value(name) for name in node.inputs[1:]]
        if len(parts) != 4 or any(part is None for part in parts) or any(node.outputs[1:]):
            return None
        gamma, beta, mean, variance = (part.astype(float) for part in parts if part is not None)
        scale = gamma / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
        return node.inputs[0], scale, beta - mean * scale
    if node.op not in ("add", "sub", "mul", "div") or len(node.inputs) != 2:
        return None
    left, right = (_by_channel(graph, name, node.outputs[0]) for name in node.inputs)
    if (left is None) == (right is None):
        return None
    if right is not None:
        factor, x = right, node.inputs[0]
        if node.op == "div":
            with np.errstate(divide="ignore", invalid="ignore"):
                factor = 1 / factor
        ways = {
            "add": (1.0, factor),
            "sub": (1.0, -factor),
            "mul": (factor, 0.0),
            "div": (factor, 0.0),
        }
    elif left is not None and node.op != "div":
        factor, x = left, node.inputs[1]
        ways = {"add": (1.0, factor), "sub": (-1.0, factor), "mul": (factor, 0.0)}
    else:
        return None
    if graph.tensors[x].shape != graph.tensors[node.outputs[0]].shape:
        return None
    scale, shift = (
        np.broadcast_to(np.asarray(part, np.float64), factor.shape) for part in ways[node.op]
    )
    return x, scale, shift


def _by_channel(graph: Graph, name: str, like: str) -> Array | None:
    """A constant that varies along axis 1 of ``like`` alone: a number a channel, in float64."""
    value, shape = graph.constant_value(name), graph.tensors[like].shape
    if value is None or len(shape) < 2 or value.ndim > len(shape):
        return None
    full = (1,) * (len(shape) - value.ndim) + value.shape
    if any(size != 1 for axis, size in enumerate(full) if axis != 1):
        return None
    return np.broadcast_to(value.reshape(-1).astype(np.float64), (shape[1],))


WEIGHTED = ("conv", "conv_transpose", "gemm")  # their weights can hold a scale a channel


def with_affine_together(graph: Graph) -> Graph:
    """Two AFFINE in a row become one."""

    def merge(node: Node, maker: Node) -> tuple[Node, dict[str, Array]] | None:
        if maker.op != AFFINE or node.op != AFFINE:
            return None
        first, second = (_parts(graph, affine) for affine in (maker, node))
        names = node.inputs[1:]
        values = (first[0] * second[0], first[1] * second[0] + second[1])
        changed = replace(node, inputs=(maker.inputs[0], *names))
        return changed, dict(zip(names, values, strict=True))

    return _pairs(graph, merge)


def with_folded_weights(graph: Graph) -> Graph:
    """An AFFINE behind a convolution or matrix product goes into its weights and bias."""

    def merge(node: Node, maker: Node) -> tuple[Node, dict[str, Array]] | None:
        weights = graph.constant_value(maker.input(1))
        if node.op != AFFINE or maker.op not in WEIGHTED or weights is None:
            return None
        bias = graph.constant_value(maker.input(2)) if maker.input(2) else np.zeros(1)
        if bias is None or (maker.op == "gemm" and not _plain(maker)):
            return None
        if bias.size != 1 and bias.shape[-1:] != (bias.size,):
            return None  # no number a column
        scale, shift = _parts(graph, node)
        factor = _factor(maker, weights, scale)
        if factor is None:
            return None
        scaled = np.empty(weights.shape, np.float32)  # products of f64, and no copy in f64 of all
        np.multiply(weights, factor, scaled, dtype=np.float64, casting="unsafe")
        moved = np.broadcast_to(bias.reshape(-1), scale.shape) * scale + shift
        names = (graph.part_name(node, "weights"), graph.part_name(node, "bias"))
        changed = replace(maker, inputs=(maker.inputs[0], *names), outputs=node.outputs)
        return changed, {names[0]: scaled, names[1]: moved.astype(np.float32)}

    return _pairs(graph, merge)


def _plain(gemm: Node) -> bool:
    """Return whether a Gemm adds its bias as it is."""
    return bool(gemm.attributes.get("alpha", 1.0) == gemm.attributes.get("beta", 1.0) == 1.0)


def _factor(maker: Node, weights: Array, scale: Array) -> Array | None:
    """Return the factor of weights, a number a channel; None where groups stand in the way."""
    if maker.op == "conv":
        return scale.reshape(-1, *[1] * (weights.ndim - 1))
    if maker.op == "gemm":
        return scale[:, None] if maker.attributes.get("transB") else scale
    if maker.attributes.get("group", 1) != 1:
        return None
    return scale.reshape(1, -1, *[1] * (weights.ndim - 2))


def _parts(graph: Graph, affine: Node) -> tuple[Array, Array]:
    return graph.constants[affine.inputs[1]], graph.constants[affine.inputs[2]]


Merge = Callable[[Node, Node], tuple[Node, dict[str, Array]] | None]


def _pairs(graph: Graph, merge: Merge) -> Graph:
    """Replace a node and the maker of its first input by one node, where nobody else reads that."""
    makers, readers = graph.makers(), graph.readers()
    kept = {tensor.name for tensor in graph.outputs}
    gone, changed, constants = set[str](), dict[str, Node](), dict[str, Array]()
    for node in graph.nodes:
        source = node.input(0)
        maker = makers.get(source)
        if (
            maker is None
            or source in kept
            or len(readers[source]) > 1
            or maker.outputs[0] in changed
        ):
            continue
        if merged := merge(node, maker):
            changed[node.outputs[0]], new = merged
            constants |= new
            gone.add(maker.outputs[0])
    nodes: Sequence[Node] = [
        changed.get(node.outputs[0], node) for node in graph.nodes if node.outputs[0] not in gone
    ]
    return rebuild(graph, nodes, constants)


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
    value = graph.constant_value(asked) if asked else np.zeros(())
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
    shape = graph.constant_value(node.input(1)) if node.op == "reshape" else None
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
