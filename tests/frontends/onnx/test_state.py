"""ONNX models that hand a cache in and out: as state of the network, which writes its new row."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import polysci
from polysci.errors import SpecError
from polysci.program.stages import UpdateStage
from tests.support.onnxmodels import node, reals

WIDTH, ROWS = 4, 6
PAIRS = {"past_key_values.*.key": "present.*.key", "past_key_values.*.value": "present.*.value"}


def decoder(new: int = 1) -> onnx.ModelProto:
    """One token a run: its row behind those of the past, a mask of ``past`` and 1 columns."""
    past, total = "past", "total"
    shape, grown = [1, past, WIDTH], [1, total, WIDTH]
    nodes = [
        node("Mul", "x factor", "k"), node("Add", "x factor", "v"),
        node("Concat", "past_key_values.0.key k", "present.0.key", axis=1),
        node("Concat", "past_key_values.0.value v", "present.0.value", axis=1),
        node("Transpose", "present.0.key", "turned", perm=[0, 2, 1]),
        node("MatMul", "x turned", "match"),
        node("Cast", "attention_mask", "real", to=TensorProto.FLOAT),
        node("Sub", "real one", "less"), node("Mul", "less most", "hidden"),
        node("Add", "match hidden", "scores"), node("Softmax", "scores", "shares", axis=-1),
        node("MatMul", "shares present.0.value", "mixed"),
        node("Cast", "position_ids", "places", to=TensorProto.FLOAT),
        node("ReduceMax", "places", "place", keepdims=0), node("Add", "mixed place", "y"),
    ]  # fmt: skip
    kinds = {"x": [1, new, WIDTH], "past_key_values.0.key": shape, "past_key_values.0.value": shape}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in kinds.items()]
    whole = TensorProto.INT64
    inputs += [helper.make_tensor_value_info("attention_mask", whole, [1, total]),
               helper.make_tensor_value_info("position_ids", whole, [1, new])]  # fmt: skip
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (
        ("y", [1, new, WIDTH]), ("present.0.key", grown), ("present.0.value", grown))]  # fmt: skip
    numbers = {"factor": reals(WIDTH, seed=3), "one": np.float32(1), "most": np.float32(1e9)}
    weights = [onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in numbers.items()]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def expected(rows: list[np.ndarray]) -> np.ndarray:
    """The result of the last row, in float64, of those so far."""
    factor = reals(WIDTH, seed=3).astype(np.float64)
    x = np.array(rows, np.float64)
    match = (x * factor) @ x[-1]
    shares = np.exp(match - match.max())
    return np.asarray(shares / shares.sum() @ (x + factor) + len(rows) - 1)


def compiled(**options: Any) -> Any:
    dims = {"past": ROWS - 1, "total": ROWS}
    return polysci.compile_network(decoder(), "estimate", dims=dims, **options)


def test_a_past_that_grows_is_a_cache() -> None:
    net = compiled(state=PAIRS, positions="position_ids", mask="attention_mask")
    assert [port.name for port in net.inputs] == ["x"]
    assert [port.name for port in net.outputs] == ["y"]
    assert sum(isinstance(its, UpdateStage) for its in net.prepared.program.stages) == 2
    rows = list[np.ndarray]()
    for turn in range(ROWS):
        rows.append(reals(WIDTH, seed=turn))
        y = net(rows[-1].reshape(1, 1, WIDTH))
        np.testing.assert_allclose(y.reshape(-1), expected(rows), rtol=1e-5, atol=1e-5)
    assert net.state["position"] == ROWS
    net.reset()
    net.state["position"] = np.array(1)  # off by one: a row of zeros counts
    y = net(rows[0].reshape(1, 1, WIDTH))
    assert np.abs(y.reshape(-1) - expected(rows[:1])).max() > 0.1


def test_what_is_no_cache_is_refused() -> None:
    for options, reason in (
        ({"state": {"past_key_values.*.key": "present.*.keys"}}, "no output is 'present.0.keys'"),
        ({"state": {"past_key_values.0.key": "y"}}, "is float32[1, 1, 4], of another shape"),
        ({"state": {"past_key_values.0.key": "present.0.value"}}, "not the input with rows behind"),
        ({"state": {**PAIRS, "past_key_values.0.key": "present.0.key"}}, "is named twice"),
        (
            {"positions": "x"},
            "positions 'x': expected a whole number for each token, got x: float32",
        ),
        ({"mask": "past_key_values.0.key"}, "expected a number for each row, got past_key"),
    ):
        with pytest.raises(SpecError) as error:
            compiled(**options)
        assert reason in str(error.value)
    with pytest.raises(SpecError, match="a run adds one row; bind the sizes"):
        dims = {"past": ROWS - 2, "total": ROWS}
        polysci.compile_network(decoder(new=2), "estimate", dims=dims, state=PAIRS)
