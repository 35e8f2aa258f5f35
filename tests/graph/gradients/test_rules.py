"""Gradients of operators beside central differences of ONNX's reference, both in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.onnx import importer, reference
from polysci.graph.differentiate import differentiate
from polysci.graph.operators import OPERATORS
from polysci.numerics.scalar_functions import FUNCTIONS

STEP = 1e-5
UNARY = [
    row.onnx for row in FUNCTIONS.values()
    if row.onnx and row.inputs == ("x",) and (row.derivatives or row.choice)
]  # fmt: skip
Case = tuple[str, list[tuple[int, ...]], dict[str, Any], list[np.ndarray]]
INTS = np.int64
F32 = np.float32


def _case(op: str, *shapes: tuple[int, ...], told: Sequence[np.ndarray] = (), **words: Any) -> Case:
    return op, list(shapes), words, [np.asarray(value) for value in told]


CASES = [
    *(_case(op, (3, 4)) for op in (*UNARY, "Selu", "ThresholdedRelu", "Identity")),
    _case("Gelu", (3, 4)),
    _case("Gelu", (3, 4), approximate="tanh"),
    *(_case(op, (2, 3, 4), shape) for op in ("Add", "Sub", "Mul", "Div", "Pow")
      for shape in ((2, 3, 4), (3, 1), (), (1,), (5, 2, 3, 4))),
    _case("Pow", (3, 4), told=[np.array(2.0, np.float32)]),
    _case("Pow", (3, 4), told=[np.array(3.5, np.float32)]),
    *(_case(op, (3, 4), (4,), (1, 1)) for op in ("Sum", "Mean", "Max", "Min")),
    _case("Clip", (3, 4), told=[np.array(0.6, np.float32), np.array(0.9, np.float32)]),
    _case("PRelu", (3, 4), (4,)),
    _case("Transpose", (2, 3, 4), perm=[1, 2, 0]),
    _case("Transpose", (2, 3)),
    *(_case("Gather", (4, 5), told=[np.array(places, INTS)], axis=axis) for places, axis in (
        ([[1, -2], [1, 0]], 0), ([3, 3, 0], -1), (2, 1))),
    _case("Flatten", (2, 3, 4)),
    _case("Reshape", (2, 3, 4), told=[np.array([4, -1], INTS)]),
    _case("Squeeze", (2, 1, 4), told=[np.array([1], INTS)]),
    _case("Unsqueeze", (2, 4), told=[np.array([1], INTS)]),
    _case("Expand", (3, 1), told=[np.array([2, 3, 4], INTS)]),
    _case("Concat", (2, 3), (2, 1), (2, 4), axis=-1),
    _case("Pad", (3, 4), told=[np.array([1, 0, 2, 1], INTS)]),
    _case("Slice", (5, 6), told=[np.array(v, INTS) for v in ([1, -1], [4, -7], [0, 1], [1, -2])]),
    _case("Slice", (5, 6), told=[np.array(v, INTS) for v in ([2], [9])]),
    _case("Slice", (5, 6), told=[np.array(v, INTS) for v in ([5], [9], [1], [3])]),
    *(_case(op, (3, 4, 2), told=told, keepdims=keep)
      for op in ("ReduceSum",) for keep in (0, 1)
      for told in ([], [np.array([0, -1], INTS)])),
    *(_case(op, (3, 4, 2), axes=[1], keepdims=keep) for keep in (0, 1)
      for op in ("ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum",
                 "ReduceLogSumExp", "ReduceMax", "ReduceMin")),
    *(_case("Gemm", (4, 3) if a else (3, 4), (5, 4) if b else (4, 5), c, transA=a, transB=b,
            alpha=0.5, beta=2.0)
      for a in (0, 1) for b in (0, 1) for c in ((3, 5), (5,), ())),
    *(_case("MatMul", a, b) for a, b in (
        ((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)), ((6, 1, 3, 4), (2, 4, 5)), ((3, 4), (2, 4, 5)), ((2, 3, 4), (4,)),
        ((4,), (2, 4, 5)), ((3, 4), (1, 4, 5)),
    )),
    _case("LayerNormalization", (3, 5), (5,), (5,)),
    _case("LayerNormalization", (2, 3, 4), (3, 1), axis=1, epsilon=0.1),
    _case("RMSNormalization", (3, 5), (5,)),
    _case("RMSNormalization", (2, 3, 4), (1, 4), axis=-2),
    *(_case("GroupNormalization", (2, 6, *rest), (6,), (6,), num_groups=groups)
      for rest, groups in (((3, 2), 2), ((4,), 1))),
    *(_case("InstanceNormalization", (images, 3, 2, 4), (3,), (3,)) for images in (1, 2)),
    _case("BatchNormalization", (3, 4, 2, 5), (4,), (4,), (4,), (4,), training_mode=1),
    _case("BatchNormalization", (7, 3), (3,), (3,), (3,), (3,), training_mode=1, momentum=0.0),
    _case("BatchNormalization", (3, 4, 2), (4,), (4,),
          told=[np.array([0.1, 0, -0.2, 0.3], F32), np.array([1, 2, 0.5, 1], F32)]),
    *(_case(op, (3, 4, 2), axis=axis) for op in ("Softmax", "LogSoftmax") for axis in (1, -1)),
    *(_case("SoftmaxCrossEntropyLoss", (5, 4), told=told, reduction=kind, **ignored)
      for kind in ("none", "sum", "mean") for ignored in ({}, {"ignore_index": 2})
      for told in ([np.array([3, 0, 2, 2, 1])],
                   [np.array([3, 0, 2, 2, 1]), np.array([1, 2, 0.5, 3], F32)])),
    _case("SoftmaxCrossEntropyLoss", (2, 3, 4), told=[np.arange(8).reshape(2, 4) % 3]),
    *(_case(op, (2, 3, 5, 4)) for op in ("GlobalMaxPool", "GlobalAveragePool")),
    *(_case(op, (2, 3, *size), kernel_shape=taps, **words)
      for op in ("MaxPool", "AveragePool") for size, taps, words in (
          ((6, 7), [2, 2], {"strides": [2, 2]}),
          ((6, 7), [3, 3], {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
          ((7, 6), [3, 2], {"strides": [1, 3], "pads": [2, 0, 1, 1]}),
          ((7, 6), [3, 2], {"strides": [2, 2], "ceil_mode": 1}),
          ((9, 8), [3, 2], {"strides": [2, 3], "auto_pad": "SAME_UPPER"}),
          ((9,), [3], {"strides": [2]}),
      )),
    _case("MaxPool", (1, 2, 9, 8), kernel_shape=[2, 3], dilations=[3, 2]),
    _case("AveragePool", (2, 1, 5, 6), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1],
          count_include_pad=1),
    _case("Conv", (2, 4, 7, 6), (6, 2, 3, 2), (6,), group=2, strides=[2, 1], pads=[1, 0, 1, 1]),
    _case("Conv", (1, 3, 9), (2, 3, 3), dilations=[2], strides=[3]),
    _case("Conv", (1, 2, 5, 8), (2, 2, 3, 3), auto_pad="SAME_UPPER", strides=[2, 3]),
    _case("Conv", (1, 2, 5, 8), (2, 2, 3, 4), auto_pad="SAME_LOWER"),
    _case("Conv", (1, 2, 5, 8), (2, 2, 3, 4), auto_pad="VALID"),
    _case("Conv", (1, 2, 4, 5, 3), (3, 2, 2, 2, 1), (3,), strides=[2, 1, 1]),
    _case("ConvTranspose", (2, 4, 5, 6), (4, 3, 3, 2), (6,), group=2, strides=[2, 1],
          pads=[1, 0, 1, 1], output_padding=[1, 0]),
    _case("ConvTranspose", (1, 3, 5), (3, 2, 3), dilations=[2], strides=[3]),
]  # fmt: skip
OPSETS = {
    "GroupNormalization": 21,
    "RMSNormalization": 23,
    "Gelu": 20,
    "Swish": 24,
    "Mish": 18,
    "Sum": 13,
}


def loss_of(case: Case) -> onnx.ModelProto:
    """A weighted sum of what the operator gives."""
    op, shapes, words, told = case
    names = [f"x{at}" for at in range(len(shapes))]
    constants = [onnx.numpy_helper.from_array(v, f"c{at}") for at, v in enumerate(told)]
    outputs = ["y", "mean", "variance"] if words.get("training_mode") else ["y"]
    node = helper.make_node(op, [*names, *(value.name for value in constants)], outputs, **words)
    nodes = [
        node, helper.make_node("Mul", ["y", "share"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted"], ["loss"], keepdims=0),
    ]  # fmt: skip
    opset = OPSETS.get(op, 17)
    shape = _result(node, shapes, constants, opset)
    share = np.random.default_rng(1).uniform(0.5, 1.5, shape).astype(np.float32)
    constants.append(onnx.numpy_helper.from_array(share, "share"))
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip(names, shapes, strict=True)
    ]
    loss = [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])]
    graph = helper.make_graph(nodes, "case", inputs, loss, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _result(
    node: onnx.NodeProto, shapes: list[tuple[int, ...]], constants: list[TensorProto], opset: int
) -> tuple[int, ...]:
    inputs = [
        helper.make_tensor_value_info(f"x{at}", TensorProto.FLOAT, shape)
        for at, shape in enumerate(shapes)
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "shape", inputs, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return importer.load(model).outputs[0].shape


POSITIVE = ("Log", "Sqrt", "Acosh", "Pow", "ReduceLogSum")


def _values(case: Case) -> dict[str, np.ndarray]:
    """Numbers between kinks; positive ones for roots and logarithms."""
    rng = np.random.default_rng(2)
    low, high = (1.1, 1.9) if case[0] == "Acosh" else (0.2, 0.95)
    signs = [1] if case[0] in POSITIVE else [1, -1]
    return {
        f"x{at}": np.asarray(rng.choice(signs, shape) * rng.uniform(low, high, shape))
        for at, shape in enumerate(case[1])
    }


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]}-{at}" for at, case in enumerate(CASES)])
def test_central_differences(case: Case) -> None:
    """Along a random direction of each input."""
    graph = importer.load(loss_of(case))
    values, rng = _values(case), np.random.default_rng(3)
    names = [tensor.name for tensor in graph.inputs]
    whole = reference.run(differentiate(graph, "loss", names), values)
    for name in names:
        made, direction = whole[f"{name}.gradient"], rng.normal(size=values[name].shape)
        assert made.shape == values[name].shape
        low, high = (
            reference.run(graph, values | {name: np.asarray(values[name] + step * direction)})
            for step in (-STEP, STEP)
        )
        slope = (high["loss"] - low["loss"]) / (2 * STEP)
        assert np.sum(made * direction) == pytest.approx(slope, rel=1e-6, abs=1e-7), name


def test_what_reaches_a_tensor_twice_is_summed() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["a"]), helper.make_node("Split", ["a"], ["b", "c"]),
        helper.make_node("Mul", ["b", "x1"], ["d"]), helper.make_node("ReduceSum", ["d"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "twice",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
         helper.make_tensor_value_info("x1", TensorProto.FLOAT, [2]),
         helper.make_tensor_value_info("unused", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    made = differentiate(importer.load(model), "y", ["x", "x1", "unused"])
    assert [tensor.name for tensor in made.outputs] == [
        "y", "x.gradient", "x1.gradient", "unused.gradient",
    ]  # fmt: skip
    values = {"x": np.array([1.0, 2, 3, 4]), "x1": np.array([5.0, 7]), "unused": np.ones(3)}
    whole = reference.run(made, values)
    assert whole["x.gradient"].tolist() == [10.0, 28.0, 0.0, 0.0]
    assert whole["x1.gradient"].tolist() == [1.0, 4.0]
    assert whole["unused.gradient"].tolist() == [0.0] * 3


def test_every_rule_has_a_case() -> None:
    with_gradient = {row.onnx or row.name for row in OPERATORS.values() if row.gradient}
    assert with_gradient <= {case[0] for case in CASES} | OTHERS


OTHERS = {"Split", "Where", "Round", "Ceil", "LSTM", "GRU", "RNN"}


def test_bad_input() -> None:
    graph = importer.load(loss_of(_case("Trilu", (3, 4))))
    with pytest.raises(UnsupportedError, match=r"1 unsupported node: 1 x trilu.*no gradient"):
        differentiate(graph, "loss", ["x0"])
    with pytest.raises(SpecError, match="'nothing': the graph has no such tensor"):
        differentiate(graph, "nothing", ["x0"])
    with pytest.raises(SpecError, match="expected one element, got"):
        differentiate(graph, "y", ["x0"])
