"""How far a computation may be from the exact result: rounding errors, node after node.

Every tensor has a bound of its error. A node passes on the errors of what it reads, through the
absolute values of its own weights, and adds a rounding of each of its terms and of its result.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from polysci.frontends.onnx import reference
from polysci.graph.graph import Graph, Node

ULP = {"f32": 2.0**-24, "bf16": 2.0**-8}  # half the distance of neighbours, relative
SAFETY = 4  # scales that are folded into weights, sums in another order, products of bounds
Array = np.ndarray
Arrays = Mapping[str, Array]
SAME = ("concat", "split", "slice", "pad", "reshape", "flatten", "transpose", "squeeze",
        "unsqueeze", "max_pool", "reduce_max", "identity", "relu", "clip", "dropout")  # fmt: skip
LINEAR = ("conv", "conv_transpose", "gemm", "matmul", "average_pool", "global_average_pool",
          "reduce_mean", "resize")  # fmt: skip
STEEP = {
    **{
        "sigmoid": 1,
        "tanh": 1,
        "leaky": 1,
        "hard_sigmoid": 1,
        "hard_swish": 2,
        "erf": 1.2,
        "gelu": 1.13,
        "mish": 1.1,
    },
    **dict.fromkeys(("abs", "neg", "sin", "atan", "elu", "softplus", "softsign"), 1),
}


def bounds(graph: Graph, exact: Arrays, dtype: str) -> dict[str, Array]:
    """By tensor, the largest error that rounding explains; ``exact`` are all tensors."""
    found: dict[str, Array] = {}
    for name, value in exact.items():
        if name in graph.constants or name in {one.name for one in graph.inputs}:
            found[name] = np.zeros(np.shape(value))
    for node in graph.nodes:
        made = _of_node(graph, node, exact, found, dtype)
        for name, error in zip(node.outputs, made, strict=True):
            found[name] = error + 2 * ULP[dtype] * _size(exact[name]) + 1e-37
    return {name: SAFETY * error for name, error in found.items()}


def _of_node(graph: Graph, node: Node, exact: Arrays, errors: Arrays, dtype: str) -> list[Array]:
    unit, x = ULP[dtype], node.inputs[0]
    size, error = _size(exact[x]), errors[x]
    if node.op == "quantize":
        return [_steps(graph, node, exact, SAFETY * error + 4 * unit * size)]
    if node.op == "dequantize":
        return [_scaled(node, exact, error)]
    if node.op in SAME:
        return _run(graph, _moved(node), exact, {name: errors[name] for name in _moving(node)})
    if node.op in LINEAR:
        return [_linear(graph, node, exact, errors, dtype)]
    if node.op in STEEP:
        return [STEEP[node.op] * error + 8 * unit * np.maximum(size, 1)]
    if node.op in ("add", "sub", "max", "min"):
        return [errors[x] + errors[node.inputs[1]] + np.zeros_like(exact[node.outputs[0]])]
    if node.op == "mul":
        other = node.inputs[1]
        return [size * errors[other] + np.abs(exact[other]) * error + error * errors[other]]
    if node.op == "batch_norm":
        scale, shift, mean, variance = (
            np.abs(exact[name]).reshape(-1, *[1] * (size.ndim - 2)) for name in node.inputs[1:]
        )
        factor = scale / np.sqrt(variance + 1e-5)
        return [factor * (error + 4 * unit * (size + mean)) + 2 * unit * shift]
    if node.op == "softmax":
        axis = node.attributes.get("axis", -1)
        worst = (error + 4 * unit * np.maximum(size, 1)).max(axis, keepdims=True)
        return [exact[node.outputs[0]] * np.expm1(np.minimum(2 * worst, 20)) + unit]
    assert node.op == "local_response_norm"
    worst = (1 + size.max(1, keepdims=True)) * error.max(1, keepdims=True)
    return [error + size * worst + 16 * unit * size]


def _size(value: Array) -> Array:
    """Absolute values; of -128 too."""
    return np.abs(value.astype(np.float64))


def _steps(graph: Graph, node: Node, exact: Arrays, error: Array) -> Array:
    """How far whole numbers are apart that x rounds to where it is off by ``error``."""
    x, (y,) = exact[node.inputs[0]], (exact[name].astype(np.float64) for name in node.outputs)
    ends = (_run(graph, node, exact, {node.inputs[0]: x + by})[0] for by in (-error, error))
    low, high = (end.astype(np.float64) for end in ends)
    return np.maximum(y - low, high - y)


def _scaled(node: Node, exact: Arrays, error: Array) -> Array:
    """An error in steps of the scale, which may be one along an axis."""
    scale = exact[node.inputs[1]]
    if scale.ndim:
        shape = [1] * error.ndim
        shape[node.attributes.get("axis", 1)] = scale.size
        scale = scale.reshape(shape)
    return error * scale


def _moving(node: Node) -> tuple[str, ...]:
    """What has elements that the result is made of."""
    return node.inputs if node.op == "concat" else node.inputs[:1]


def _moved(node: Node) -> Node:
    """The node that does to errors what this one does to elements."""
    if node.op in ("relu", "clip", "dropout"):
        return Node("identity", node.inputs[:1], node.outputs)
    if node.op == "pad":
        return replace(node, inputs=node.inputs[:2])
    return node


def _linear(graph: Graph, node: Node, exact: Arrays, errors: Arrays, dtype: str) -> Array:
    sizes = {name: np.abs(exact[name]) for name in node.inputs if name}
    if node.op not in ("conv", "conv_transpose", "gemm", "matmul"):
        sizes = {node.inputs[0]: sizes[node.inputs[0]]}
    terms = sizes[node.inputs[0]].size if node.op == "reduce_mean" else _terms(node, exact)
    gamma = (terms + 4) * ULP["f32"] + 3 * ULP[dtype]
    words = {n: abs(v) if n in ("alpha", "beta") else v for n, v in node.attributes.items()}
    node = replace(node, attributes=MappingProxyType(words))
    (total,) = _run(graph, node, exact, sizes)
    wide = {name: size + errors[name] for name, size in sizes.items()}
    (larger,) = _run(graph, node, exact, wide)
    return gamma * larger + np.maximum(larger - total, 0)


def _terms(node: Node, exact: Arrays) -> int:
    """How many products, or elements, make one result."""
    if node.op in ("average_pool", "global_average_pool", "resize"):
        return int(np.prod(node.attributes.get("kernel_shape", exact[node.inputs[0]].shape[2:])))
    w = exact[node.inputs[1]]
    return int(w.size // max(1, w.shape[0])) if node.op == "conv" else int(w.size)


def _run(graph: Graph, node: Node, exact: Arrays, instead: Arrays) -> list[Array]:
    """The results of a node for other inputs."""
    return [np.asarray(one) for one in reference.of_node(graph, node, {**exact, **instead})]
