"""Models as onnxruntime.quantization writes them, beside ONNX Runtime."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals

onnxruntime = pytest.importorskip("onnxruntime")
ROWS, TERMS, COLUMNS = 5, 12, 7
ELEMENTS = (("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"))
BIASES: dict[str, Sequence[int] | None] = {
    "no C": None, "C": (COLUMNS,), "a row": (1, COLUMNS), "a column": (ROWS, 1),
    "a matrix": (ROWS, COLUMNS), "a number": (),
}  # fmt: skip


SMALL = (-64, 64)  # signed weights: ONNX Runtime adds pairs of products in 16 bits on some CPUs


def theirs(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime computes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(inputs)))


def foreign(
    op: str, operands: Mapping[str, Any], constants: Sequence[str], output: np.dtype, **words: Any
) -> onnx.ModelProto:
    """A node of ``com.microsoft``: an operand that is None is left out."""
    kind = helper.np_dtype_to_tensor_dtype
    names = [name if value is not None else "" for name, value in operands.items()]
    one = helper.make_node(op, names, ["y"], f"the {op}", domain="com.microsoft", **words)
    there = {name: np.asarray(value) for name, value in operands.items() if value is not None}
    graph = helper.make_graph(
        [one], "one",
        [helper.make_tensor_value_info(n, kind(v.dtype), v.shape) for n, v in there.items()
         if n not in constants],
        [helper.make_tensor_value_info("y", kind(output), None)],
        [numpy_helper.from_array(v, n) for n, v in there.items() if n in constants],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def check(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], steps: float = 1.0) -> None:
    """Real results are equal but for rounding, those of 8 bits but for a step of a few."""
    (wanted,) = theirs(model, inputs)
    made = network_of(read(model))(inputs)["y"]
    assert made.dtype == wanted.dtype and made.shape == wanted.shape
    if wanted.dtype.kind == "f":
        np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4)
        return
    apart = np.abs(made.astype(int) - wanted.astype(int))
    assert apart.max() <= steps and (apart > 0).mean() <= 0.1


GEMMS = [*itertools.product(ELEMENTS, (False, True), BIASES, (0, 1), (0, 1), (1.0, 0.5),
                            (False, True), (False, True))]  # fmt: skip
TRIED = random.Random(7).sample(GEMMS, 24)


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(
    ("elements", "channels", "bias", "trans_a", "trans_b", "alpha", "narrow", "constant"), TRIED
)
def test_gemm(
    elements: tuple[str, str], channels: bool, bias: str, trans_a: int, trans_b: int, alpha: float,
    narrow: bool, constant: bool,
) -> None:  # fmt: skip
    """A scale a column or one, C of every shape, both factors as they lie or transposed."""
    draw, (of_a, of_b) = np.random.default_rng(3), elements
    least = {name: np.iinfo(name).min for name in elements}

    def bytes_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
        return draw.integers(least[name], least[name] + 256, shape).astype(name)

    def weights_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
        return (
            draw.integers(*SMALL, shape).astype(name) if name == "int8" else bytes_of(name, shape)
        )

    shape, middle = BIASES[bias], 120 if of_b == "uint8" else 0
    operands = {
        "a": bytes_of(of_a, (TERMS, ROWS) if trans_a else (ROWS, TERMS)),
        "sa": np.float32(0.05), "za": np.array(117 if of_a == "uint8" else -3, of_a),
        "b": weights_of(of_b, (COLUMNS, TERMS) if trans_b else (TERMS, COLUMNS)),
        "sb": draw.uniform(0.01, 0.03, COLUMNS if channels else ()).astype(np.float32),
        "zb": np.full(COLUMNS if channels else (), middle, of_b),
        "c": None if shape is None else draw.integers(-3000, 3000, shape).astype(np.int32),
    }  # fmt: skip
    if narrow:
        zero = np.array(119 if of_a == "uint8" else 4, of_a)
        operands |= {"sy": np.float32(0.4), "zy": zero}
    inputs = {"a"} if constant else {"a", "b"}
    made = foreign(
        "QGemm", operands, [name for name in operands if name not in inputs],
        np.dtype(of_a if narrow else "float32"), alpha=alpha, transA=trans_a, transB=trans_b,
    )  # fmt: skip
    check(made, {name: operands[name] for name in inputs})


X8 = np.random.default_rng(1).integers(0, 256, (3, 4, 6)).astype(np.uint8)
X32 = reals(3, 4, 6)
SCALED = {"sx": np.float32(0.03), "zx": np.uint8(121)}
NARROW = {"sy": np.float32(1 / 256), "zy": np.uint8(0)}
OTHERS: dict[str, tuple[str, dict[str, Any], Sequence[str], str, dict[str, Any]]] = {
    "softmax": ("QLinearSoftmax", {"x": X8, **SCALED, **NARROW}, "x", "uint8",
                {"axis": -1, "opset": 17}),
    "softmax of an axis": ("QLinearSoftmax", {"x": X8, **SCALED, **NARROW}, "x", "uint8",
                           {"axis": 1, "opset": 17}),
    "where": (
        "QLinearWhere",
        {"c": np.arange(6) % 2 == 0, "x": X8, **SCALED, "z": X8[::-1].copy(),
         "sz": np.float32(0.02), "zz": np.uint8(90), "sy": np.float32(0.04), "zy": np.uint8(128)},
        "cxz", "uint8", {},
    ),
    "a product in reals": (
        "MatMulIntegerToFloat",
        {"x": X8, "w": np.random.default_rng(2).integers(*SMALL, (6, 5)).astype(np.int8),
         "sx": np.float32(0.03), "sw": np.linspace(0.01, 0.02, 5).astype(np.float32),
         "zx": np.uint8(121), "zw": np.zeros(5, np.int8), "b": reals(5)},
        "x", "float32", {},
    ),
    "a product of what is rounded": (
        "DynamicQuantizeMatMul",
        {"x": X32, "w": np.random.default_rng(2).integers(*SMALL, (6, 5)).astype(np.int8),
         "sw": np.linspace(0.01, 0.02, 5).astype(np.float32), "zw": np.zeros(5, np.int8),
         "b": reals(5)},
        "x", "float32", {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_others(case: str) -> None:
    op, operands, inputs, output, words = OTHERS[case]
    constants = [name for name in operands if name not in inputs]
    made = foreign(op, operands, constants, np.dtype(output), **words)
    check(made, {name: operands[name] for name in inputs})


def test_means() -> None:
    """As its definition says: ONNX Runtime has no kernel for it any more."""
    operands = {"x": X8, **SCALED, "sy": np.float32(0.03), "zy": np.uint8(121)}
    constants = [name for name in operands if name != "x"]
    made = foreign("QLinearReduceMean", operands, constants, np.dtype("uint8"), axes=[2])
    result = network_of(read(made))({"x": X8})["y"]
    assert np.abs(result - X8.mean(2, keepdims=True)).max() <= 0.501


def test_a_softmax_of_an_older_version() -> None:
    """Along all axes from one on."""
    operands = {"x": X8, **SCALED, **NARROW}
    constants = [name for name in operands if name != "x"]
    made = foreign("QLinearSoftmax", operands, constants, np.dtype("uint8"), axis=1, opset=11)
    check(made, {"x": X8})


# Whole models


def classifier() -> onnx.ModelProto:
    """Two convolutions, a branch, a pool, two linear layers, a softmax."""
    nodes = [
        node("Conv", "x w1 b1", "c1", pads=[1, 1, 1, 1]), node("Relu", "c1", "r1"),
        node("Conv", "r1 w2 b2", "c2", pads=[1, 1, 1, 1]), node("LeakyRelu", "c2", "l2"),
        node("Add", "r1 l2", "s"), node("MaxPool", "s", "m", kernel_shape=[2, 2], strides=[2, 2]),
        node("AveragePool", "l2", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Concat", "m p", "k", axis=1), node("Sigmoid", "k", "g"), node("Mul", "k g", "h"),
        node("GlobalAveragePool", "h", "q"), node("Flatten", "q", "f"),
        node("Gemm", "f w3 b3", "z", transB=1), node("MatMul", "z w4", "u"),
        node("Softmax", "u", "y"),
    ]  # fmt: skip
    weights = {
        "w1": reals(8, 3, 3, 3), "b1": reals(8), "w2": 0.3 * reals(8, 8, 3, 3, seed=1),
        "b2": reals(8, seed=2), "w3": reals(10, 16, seed=3), "b3": reals(10, seed=4),
        "w4": reals(10, 7, seed=5),
    }  # fmt: skip
    made = model(nodes, {"x": (2, 3, 12, 12)}, {"y": (2, 7)}, weights, 17)
    made.ir_version = 8
    return made


class Calibration:
    """Four inputs of a model."""

    def __init__(self) -> None:
        self.inputs: Iterator[dict[str, np.ndarray]] = iter(
            {"x": reals(2, 3, 12, 12, seed=seed)} for seed in range(4)
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.inputs, None)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("form", ["QOperator", "QDQ"])
@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("elements", [("QUInt8", "QInt8"), ("QInt8", "QInt8")])
@pytest.mark.filterwarnings("ignore")  # of the quantiser
def test_a_classifier(form: str, channels: bool, elements: tuple[str, str], tmp_path: Path) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    before, after = tmp_path / "real.onnx", tmp_path / "narrow.onnx"
    onnx.save(classifier(), before)
    kinds = [getattr(quantization.QuantType, name) for name in elements]
    quantization.quantize_static(
        before, after, Calibration(), getattr(quantization.QuantFormat, form),
        per_channel=channels, activation_type=kinds[0], weight_type=kinds[1], reduce_range=True,
    )  # fmt: skip
    made = onnx.load(after)
    if form == "QOperator":
        ops = {one.op_type for one in made.graph.node if one.domain == "com.microsoft"}
        assert {"QGemm", "QLinearSoftmax", "QLinearConcat"} <= ops
    x = reals(2, 3, 12, 12, seed=9)
    (wanted,) = theirs(made, {"x": x})
    result = network_of(read(made))({"x": x})["y"]
    assert np.abs(result - wanted).max() <= 2 / 256  # two steps of the probabilities
    assert made.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
