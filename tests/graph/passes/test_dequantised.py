"""Products between DequantizeLinear and QuantizeLinear become products of whole numbers."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polysci.frontends.onnx import reference
from polysci.graph.graph import Graph, Node
from polysci.graph.passes.integer_products import make_integer_products
from tests.support.networks import network_of, read
from tests.support.onnxmodels import node, reals

Array = np.ndarray


def parameters(name: str, scale: Any, zero: Any, dtype: type = np.uint8) -> dict[str, Array]:
    return {f"{name}s": np.asarray(scale, np.float32), f"{name}z": np.asarray(zero, dtype)}


def model_of(
    nodes: list[onnx.NodeProto], shape: tuple[int, ...], weights: dict[str, Array],
    *, narrow: bool = True,
) -> Graph:  # fmt: skip
    """From x in f32, 8-bit factors ``q`` and ``w``, to y in f32, which is ``narrow`` before."""
    around = [
        node("QuantizeLinear", "x xs xz", "q"), node("DequantizeLinear", "q xs xz", "real_x"),
        node("DequantizeLinear", "w ws wz", "real_w", axis=int(weights.pop("axis", np.array(0)))),
        *nodes,
        *[node("QuantizeLinear", "product ys yz", "p"),
          node("DequantizeLinear", "p ys yz", "y")] * narrow,
    ]  # fmt: skip
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        around, "quantised", [info("x", TensorProto.FLOAT, shape)],
        [info("y" if narrow else "product", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    return integers(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def integers(model: onnx.ModelProto) -> Graph:
    return make_integer_products(read(model))


def whole(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).integers(-127, 128, shape).astype(np.int8)


SCALES = parameters("x", 1 / 64, 120) | parameters("y", 1 / 8, 130)
ROWS = np.linspace(0.5, 1.5, 6) / 256
BIAS = {"b": np.round(reals(6) * 1000).astype(np.float32) * np.float32(1 / 64 / 256)}
CASES: dict[str, tuple[str, list[onnx.NodeProto], tuple[int, ...], dict[str, Array]]] = {
    "matmul": (
        "quantized_matmul", [node("MatMul", "real_x real_w", "product")], (2, 3, 8),
        {"w": whole(8, 6), **parameters("w", 1 / 256, 3, np.int8)},
    ),
    "matmul, columns": (
        "quantized_matmul", [node("MatMul", "real_x real_w", "product")], (5, 8),
        {"w": whole(8, 6), **parameters("w", ROWS, [0] * 6, np.int8), "axis": np.array(1)},
    ),
    "conv": (
        "quantized_conv",
        [node("Conv", "real_x real_w", "product", pads=[1, 1, 1, 1])], (1, 3, 9, 9),
        {"w": whole(6, 3, 3, 3), **parameters("w", 1 / 256, 128, np.uint8)},
    ),
    "conv of one axis": (
        "quantized_conv", [node("Conv", "real_x real_w b", "product", strides=[2])], (2, 3, 9),
        {"w": whole(6, 3, 3), **parameters("w", ROWS, [0] * 6, np.int8), **BIAS},
    ),
    "relu": (
        "quantized_conv", [node("Conv", "real_x real_w", "c"), node("Relu", "c", "product")],
        (1, 3, 5, 5),
        {"w": whole(6, 3, 1, 1), **parameters("w", 1 / 256, 0, np.int8),
         **parameters("y", 1 / 8, 0)},
    ),
    "clip": (
        "quantized_conv",
        [node("Conv", "real_x real_w", "c"), node("Clip", "c least most", "product")],
        (1, 3, 5, 5),
        {"w": whole(6, 3, 1, 1), **parameters("w", 1 / 256, 0, np.int8),
         **parameters("y", 1 / 64, 0), "least": np.float32([0])[0], "most": np.float32([4])[0]},
    ),
    "gemm": (
        "quantized_matmul", [node("Gemm", "real_x real_w b", "product", transB=1)], (5, 8),
        {"w": whole(6, 8), **parameters("w", ROWS, [0] * 6, np.int8), **BIAS},
    ),
    "flat": (
        "quantized_matmul",
        [node("Flatten", "real_x", "f"), node("Gemm", "f real_w", "product")], (2, 3, 4),
        {"w": whole(12, 6), **parameters("w", ROWS, [0] * 6, np.int8), "axis": np.array(1)},
    ),
    "bias added": (
        "quantized_matmul",
        [node("MatMul", "real_x real_w", "m"), node("Add", "m b", "product")], (2, 3, 8),
        {"w": whole(8, 6), **parameters("w", 1 / 256, 3, np.int8), **BIAS},
    ),
    "bias of channels added": (
        "quantized_conv",
        [node("Conv", "real_x real_w", "c"), node("Add", "a c", "product")], (1, 3, 5, 5),
        {"w": whole(6, 3, 3, 3), **parameters("w", 1 / 256, 0, np.int8),
         "a": BIAS["b"].reshape(1, 6, 1, 1)},
    ),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_products_of_bytes(name: str) -> None:
    op, nodes, shape, weights = CASES[name]
    weights = SCALES | weights
    if weights["wz"].dtype == np.uint8:
        weights["w"] = (weights["w"].astype(int) + 128).astype(np.uint8)
    graph = model_of(nodes, shape, dict(weights))
    assert op in [one.op for one in graph.nodes]
    assert not {"conv", "matmul", "gemm", "add", "relu", "clip"} & {one.op for one in graph.nodes}
    x = reals(*shape, seed=2)
    network = network_of(graph)
    layers = list(network.prepared.program.layers())
    assert [layer.problem.dtype for layer in layers] == ["u8:s8:u8"]
    along = int(weights.get("axis", 0))
    plain = narrow(plain_result(graph, nodes, x, weights, along), weights, "y")
    step = float(weights["ys"])
    made = network({"x": x})["y"]
    # a sum between two whole numbers may be rounded the other way
    assert np.abs(made - plain).max() <= step * 1.001
    assert np.mean(np.abs(made - plain) > step / 2) < 0.02
    exact = reference.run(graph, {"x": x})["y"]
    assert np.mean(np.abs(made - exact) > step / 2) < 0.02


def plain_result(
    graph: Graph, nodes: list[onnx.NodeProto], x: Array, weights: dict[str, Array], along: int
) -> Array:
    """As the nodes are written, in float64."""
    w = weights["w"].astype(float)
    beside = [-1 if at == along else 1 for at in range(w.ndim)]
    scale, zero = (weights[f"w{n}"].astype(float) for n in "sz")
    real = (w - zero.reshape(beside if zero.ndim else ())) * scale.reshape(
        beside if scale.ndim else ()
    )
    known = {name: value.astype(float) for name, value in weights.items()}
    known |= {"real_x": narrow(x, weights, "x"), "real_w": real}
    for one in nodes:
        words = {a.name: helper.get_attribute_value(a) for a in one.attribute}
        step = Node(one.op_type, tuple(one.input), tuple(one.output), words)
        (known[one.output[0]],) = reference.of_node(graph, step, known)
    return known["product"]


def narrow(value: Array, weights: dict[str, Array], name: str) -> Array:
    """The real numbers that those of 8 bits stand for."""
    scale, zero = (float(weights[f"{name}{end}"]) for end in "sz")
    rounded: Array = (np.clip(np.rint(value.astype(float) / scale) + zero, 0, 255) - zero) * scale
    return rounded


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize("name", CASES)
def test_sums_that_stay_real(name: str) -> None:
    """In f32, of sums that are exact."""
    _, nodes, shape, weights = CASES[name]
    weights = SCALES | weights
    if weights["wz"].dtype == np.uint8:
        weights["w"] = (weights["w"].astype(int) + 128).astype(np.uint8)
    graph = model_of(nodes, shape, dict(weights), narrow=False)
    x = reals(*shape, seed=2)
    network = network_of(graph)
    assert [layer.problem.dtype for layer in network.prepared.program.layers()] == ["u8:s8:s32"]
    plain = plain_result(graph, nodes, x, weights, int(weights.get("axis", 0)))
    for made in (network({"x": x})["product"], reference.run(graph, {"x": x})["product"]):
        np.testing.assert_allclose(made, plain, rtol=2**-21, atol=2**-21 * np.abs(plain).max())


OTHER = {
    "weights of 16 bits": {"w": np.ones((8, 6), np.int16), "wz": np.int16(0)},
    "a zero beyond 8 bits": {"w": np.full((8, 6), 255, np.uint8), "wz": np.uint8(3)},
    "scales of rows": {"ws": np.ones(8, np.float32), "wz": np.zeros(8, np.int8)},
}


@pytest.mark.parametrize("name", OTHER)
def test_other_products_stay_real(name: str) -> None:
    weights = SCALES | {"w": whole(8, 6), **parameters("w", 1 / 256, 0, np.int8)} | OTHER[name]
    weights = {key: np.asarray(value) for key, value in weights.items()}
    info = helper.make_tensor_value_info
    nodes = [
        node("QuantizeLinear", "x xs xz", "q"), node("DequantizeLinear", "q xs xz", "real_x"),
        node("DequantizeLinear", "w ws wz", "real_w", axis=0),
        node("MatMul", "real_x real_w", "product"), node("QuantizeLinear", "product ys yz", "y"),
    ]  # fmt: skip
    kind = helper.np_dtype_to_tensor_dtype(weights["yz"].dtype)
    graph = helper.make_graph(
        nodes, "real", [info("x", TensorProto.FLOAT, (2, 8))], [info("y", kind, None)],
        [numpy_helper.from_array(value, key) for key, value in weights.items()],
    )  # fmt: skip
    made = integers(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    assert "matmul" in [one.op for one in made.nodes]


def test_a_relu_that_cuts_stays() -> None:
    """With a zero in the middle of the numbers the result can be negative."""
    nodes = [node("MatMul", "real_x real_w", "c"), node("Relu", "c", "product")]
    weights = SCALES | {"w": whole(8, 6), **parameters("w", 1 / 256, 0, np.int8)}
    assert {"relu", "integer_matmul"} <= {one.op for one in model_of(nodes, (2, 8), weights).nodes}
