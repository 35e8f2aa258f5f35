"""Tensors of which data decides the length, against ONNX's reference, which has no bounds."""

import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from polysci.errors import SizeError, UnsupportedError
from polysci.export.network_project import table_rows
from polysci.export.selftest_data import make_selftest_data
from polysci.network.build import store
from polysci.network.runner import cut_results, restore
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals

R = np.random.default_rng(0)
NUMBERS = {
    "zero_list": np.array([0], np.int64), "minus_three": np.array([-3], np.int64),
    "zero_one": np.array([0, 1], np.int64), "one_three": np.array([1, 3], np.int64),
    "zero_real": np.array(0, np.float32),
    "zero": np.array(0, np.int64), "one": np.array([1], np.int64), "two": np.array([2], np.int64),
    "three": np.array([3], np.int64), "half": np.array(0.5, np.float32),
    "ten": np.array([10], np.int64), "share": np.array([0.5], np.float32),
    "least": np.array([0.6], np.float32), "last": np.array([-1], np.int64),
    "w": reals(6, 5), "flat": np.array([-1, 2], np.int64),
}  # fmt: skip
DETECTOR = [
    node("Sigmoid", "raw", "scores"),
    node("NonMaxSuppression", "boxes scores ten share least", "rows"),
    node("Gather", "rows two", "column", axis=1),
    node("Squeeze", "column one", "places"),
    node("Squeeze", "boxes zero_list", "plain"),
    node("Gather", "plain places", "kept", axis=0),
    node("Slice", "rows one two one", "kinds"),
    node("Cast", "kinds", "numbers", to=1),
    node("Concat", "kept numbers", "found", axis=1),
    node("GatherND", "scores rows", "sure"),
]  # fmt: skip
# Nodes that follow NonZero of a condition: `at` (places), `v` (values), `r` (rows of a Compress).
BEHIND = {
    "alike": (node("Exp", "v", "a"), node("Add", "a half", "b"), node("Mul", "b v", "y")),
    "sum": (node("ReduceSum", "v", "y", keepdims=0),),
    "sum of squares": (node("ReduceSumSquare", "r", "y", axes=[0]),),
    "along another axis": (node("ReduceMax", "r", "y", axes=[1], keepdims=0),),
    "mean": (node("ReduceMean", "r", "y", axes=[0], keepdims=0),),
    "mean of all": (node("ReduceMean", "r", "y", keepdims=0),),
    "largest": (node("ReduceMax", "v", "y"),),
    "place of the smallest": (node("ArgMin", "v", "y", axis=0),),
    "first": (node("TopK", "v two", "y i"),),
    "shape": (node("Shape", "r", "y"),),
    "part of a shape": (node("Shape", "r", "y", start=1),),
    "size": (node("Size", "r", "y"),),
    "as many as there are": (node("Shape", "v", "n"), node("TopK", "v n", "y i", largest=0)),
    "from the end": (node("Gather", "r last", "y", axis=0),),
    "joined": (node("Concat", "r x r", "y", axis=0),),
    "side by side": (node("Concat", "r r", "y", axis=1),),
    "product": (node("MatMul", "r w", "y"),),
    "gemm": (node("Gemm", "r w", "y"),),
    "softmax": (node("Softmax", "r", "y", axis=-1),),
    "softmax of all": (node("Softmax", "v", "y", axis=0), node("LogSoftmax", "v", "z")),
    "sums so far": (node("CumSum", "v zero", "y"),),
    "reshaped": (node("Unsqueeze", "v one", "u"), node("Transpose", "u", "y")),
    "normal": (node("LpNormalization", "r", "y", axis=1),),
    "part": (node("Slice", "v one three", "y"),),
    "part beyond the end": (node("Slice", "v two ten", "y"),),
    "last ones": (node("Slice", "v minus_three ten", "y"),),
    "all but the last": (node("Slice", "v one last", "y"),),
    "some of the last": (node("Slice", "v minus_three last", "y"),),
    "part along two axes": (node("Slice", "r zero_one one_three zero_one", "y"),),
    "again": (node("Greater", "v half", "g"), node("NonZero", "g", "y")),
    "compressed again": (
        node("ReduceMin", "r", "low", axes=[1], keepdims=0), node("Less", "low zero_real", "g"),
        node("Compress", "r g", "y", axis=0),
    ),
    "gathered again": (node("Gather", "v at_one", "y"),),
}  # fmt: skip


def compared(made: onnx.ModelProto, inputs: dict[str, np.ndarray], threads: int = 1) -> None:
    network = network_of(read(made), threads)
    outputs = network(inputs)
    wanted = ReferenceEvaluator(made).run(None, inputs)
    assert [*outputs] == [tensor.name for tensor in made.graph.output]
    for (name, result), expected in zip(outputs.items(), wanted, strict=True):
        assert result.shape == expected.shape and result.dtype == expected.dtype, name
        assert np.allclose(result, expected, 1e-5, 1e-5), name


def detector(**words: int) -> onnx.ModelProto:
    nodes = [onnx.NodeProto.FromString(part.SerializeToString()) for part in DETECTOR]
    for name, value in words.items():
        nodes[1].attribute.append(onnx.helper.make_attribute(name, value))
    return model(nodes, {"raw": [1, 3, 40], "boxes": [1, 40, 4]},
                 dict.fromkeys(("rows", "found", "sure")),
                 NUMBERS)  # fmt: skip


def scene(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {"raw": random.normal(size=(1, 3, 40)).astype(np.float32),
            "boxes": random.uniform(0, 2, (1, 40, 4)).astype(np.float32)}  # fmt: skip


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("centered", [0, 1])
def test_boxes_that_remain(centered: int, threads: int) -> None:
    compared(detector(center_point_box=centered), scene(), threads)


def test_none_remains() -> None:
    inputs = scene()
    inputs["raw"] -= 99
    outputs = network_of(read(detector()))(inputs)
    assert outputs["rows"].shape == (0, 3) and outputs["found"].shape == (0, 5)


def test_fewer_boxes_than_there_may_be() -> None:
    made, inputs = detector(), scene()
    network, counts = network_of(read(made, most={"rows": 4})), list[int]()
    for shift in (0, 0.5, 1, 1.5, 9):
        feeds = {**inputs, "raw": inputs["raw"] - np.float32(shift)}
        wanted = ReferenceEvaluator(made).run(None, feeds)
        counts.append(len(wanted[0]))
        if counts[-1] <= 4:
            outputs = network(feeds)
            assert all(
                np.allclose(y, x, 1e-5) for y, x in zip(outputs.values(), wanted, strict=True)
            )
            continue
        with pytest.raises(
            SizeError, match=f"rows: this run needs at least {counts[-1]}, and most"
        ):
            network(feeds)
    assert counts[0] > 4 and {*counts} & {1, 2, 3, 4} and counts[-1] == 0, counts


def selection(behind: tuple[onnx.NodeProto, ...]) -> onnx.ModelProto:
    nodes = [
        node("Greater", "x limit", "c"), node("NonZero", "c", "at"), node("Transpose", "at", "t"),
        node("GatherND", "x t", "v"), node("ReduceMax", "x", "most", axes=[1], keepdims=0),
        node("Greater", "most half", "row"), node("Compress", "x row", "r", axis=0),
        node("ReduceMin", "at", "at_low", axes=[0], keepdims=0),
        node("Min", "at_low zero", "at_one"),
        *behind,
    ]  # fmt: skip
    weights = {**NUMBERS, "limit": np.array(0.2, np.float32)}
    return model(nodes, {"x": [4, 6]}, {"y": None}, weights)


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize("name", BEHIND)
def test_what_follows(name: str) -> None:
    x = np.float32([[0.9, -1, 0.3, 0.7, 0, 0], [0] * 6, [-1, 0.8, 0.9, 0, 0, 0.6], [-1] * 6])
    compared(selection(BEHIND[name]), {"x": x}, threads=2)


@pytest.mark.parametrize(
    ("behind", "reason"),
    [
        (node("Hardmax", "v", "y"), "mixes elements along an axis of which data decides"),
        (node("MatMul", "v six", "y"), "its inputs have axes of which data decides the length in"),
        (node("ReduceLogSum", "v", "y"), "mixes elements along an axis of which data decides"),
        (node("Add", "v at_row", "y"), "data decides the length of its inputs"),
        (node("Add", "v six", "y"), "24 elements beside as many as data decides"),
        (node("Slice", "v one three zero_list two", "y"), "every 2th along an axis"),
    ],
)
def test_what_has_no_meaning(behind: onnx.NodeProto, reason: str) -> None:
    made = selection((node("ReduceMax", "r", "at_row", axes=[1], keepdims=0), behind))
    made.graph.initializer.append(onnx.numpy_helper.from_array(reals(24), "six"))
    with pytest.raises(UnsupportedError, match=reason):
        read(made)


def test_all_that_a_network_is_used_for(tmp_path: Path) -> None:
    """Self-test, pickle, another process, and what the header says."""
    network = network_of(read(detector()))
    inputs = scene(1)
    outputs = network(inputs)
    assert make_selftest_data(network).error < 1e-5
    again = pickle.loads(pickle.dumps(network))(inputs)
    assert all(np.array_equal(outputs[name], again[name]) for name in outputs)
    store(network.code, network.runner.library.path, tmp_path)
    runner = restore(tmp_path)
    results = cut_results(runner.outputs, runner([inputs["raw"], inputs["boxes"]]))
    assert all(np.array_equal(outputs[name], results[name]) for name in outputs)
    assert "30 x 3 (rows): of axis 0 the first *y3" in network.code.files["small.h"]
    assert any("rows: of axis 0 the first *y3" in row for row in table_rows(network))
    assert [port.dynamic_dim for port in network.outputs] == [(0, 3), (0, 3), (0, 3), None]


def test_a_limit_that_is_data() -> None:
    made = detector()
    made.graph.input.append(onnx.helper.make_tensor_value_info("ten", onnx.TensorProto.INT64, [1]))
    del made.graph.initializer[[one.name for one in made.graph.initializer].index("ten")]
    for limit in (0, 2, 99):
        compared(made, {**scene(), "ten": np.array([limit], np.int64)})


def test_boxes_of_which_data_decides_how_many() -> None:
    nodes = [
        node("Greater", "x half", "c"), node("NonZero", "c", "at"),
        node("Squeeze", "at zero_list", "p"), node("Gather", "b p", "kept"),
        node("Gather", "x p", "s"),
        node("Unsqueeze", "kept zero_list", "boxes"), node("Unsqueeze", "s both", "scores"),
        node("NonMaxSuppression", "boxes scores ten share", "y"),
    ]  # fmt: skip
    weights = {**NUMBERS, "both": np.array([0, 1], np.int64)}
    made = model(nodes, {"x": [50], "b": [50, 4]}, {"y": None}, weights)
    compared(made, {"x": R.uniform(0, 1, 50).astype(np.float32),
                    "b": R.uniform(0, 2, (50, 4)).astype(np.float32)})  # fmt: skip
