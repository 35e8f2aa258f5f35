"""Models with narrow layers: what is written, and that budgets hold."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from polysci.cli import main
from polysci.errors import SpecError
from polysci.quantize import quantize_model
from polysci.quantize.layers import (
    layers_of,
    narrow_weights,
    quantise_layers,
    with_losses,
    with_opset,
)
from polysci.quantize.ranges import LinearRange
from tests.support.onnxmodels import model, node, reals

WEIGHTS = {
    "w": reals(6, 2, 3, 3), "b": reals(6, seed=1), "v": reals(54, 5, seed=2),
    "c": reals(5, seed=3), "u": reals(5, 4, seed=4),
}  # fmt: skip


def small(opset: int = 21) -> onnx.ModelProto:
    nodes = [
        node("Conv", "x w b", "a"), node("Relu", "a", "r"), node("Flatten", "r", "f"),
        node("Gemm", "f v c", "g"), node("MatMul", "g u", "y"),
    ]  # fmt: skip
    return model(nodes, {"x": (1, 2, 5, 5)}, {"y": (1, 4)}, WEIGHTS, opset)


RANGES = {"x": LinearRange(-1, 1), "f": LinearRange(0, 8), "g": LinearRange(-16, 16)}
X = {"x": reals(1, 2, 5, 5, seed=7)}


def run(proto: onnx.ModelProto) -> np.ndarray:
    return ReferenceEvaluator(proto).run(None, X)[0]


def loss(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_layers_are_found() -> None:
    found = layers_of(small())
    assert [(layer.op, layer.x, layer.axis) for layer in found] == [
        ("Conv", "x", 0), ("Gemm", "f", 1), ("MatMul", "g", 1)
    ]  # fmt: skip


def test_weights_are_symmetric_and_have_a_scale_a_channel() -> None:
    numbers, scales = narrow_weights(np.array([[1.0, 0, -4], [2, 0, 3]], np.float32), 1)
    np.testing.assert_array_equal(scales, np.array([2 / 127, 1, 4 / 127], np.float32))
    np.testing.assert_array_equal(numbers, [[64, 0, -127], [127, 0, 95]])


def test_layers_are_written_between_quantisations() -> None:
    proto = quantise_layers(small(), RANGES, {"a": "int8", "g": "int8", "y": "bf16"})
    onnx.checker.check_model(proto, full_check=True)
    made = {name: one for one in proto.graph.node for name in one.output}
    for y in "ag":
        layer = made[y]
        assert [made[name].op_type for name in layer.input] == ["DequantizeLinear"] * 3
    assert made[made["y"].input[1]].op_type == "Cast"
    kinds = {part.name: part.data_type for part in proto.graph.initializer}
    assert TensorProto.FLOAT not in {kinds.get(name) for name in "wbvcu"} - {None}
    assert TensorProto.BFLOAT16 in kinds.values()
    assert 0 < loss(run(proto), run(small())) < 0.03


def test_what_is_left_in_f32_is_as_it_was() -> None:
    assert np.array_equal(run(quantise_layers(small(), RANGES, {})), run(small()))


def test_losses_are_those_of_layers_by_themselves() -> None:
    proto, names = with_losses(small(), RANGES, ["int8", "bf16"])
    onnx.checker.check_model(proto)
    assert list(names) == [(y, kind) for y in "agy" for kind in ("f32", "int8", "bf16")]
    values = dict(zip(names, ReferenceEvaluator(proto).run(None, X), strict=True))
    narrow = run(quantise_layers(small(), RANGES, {"y": "int8"}))  # the last layer by itself
    assert values["y", "int8"] == pytest.approx(np.square(narrow - run(small())).sum(), rel=1e-3)
    assert all(values[y, "bf16"] < values[y, "int8"] < 0.01 * values[y, "f32"] for y in "agy")


def test_older_models_are_converted() -> None:
    proto = with_opset(small(11), "small")
    assert [entry.version for entry in proto.opset_import] == [13]
    np.testing.assert_array_equal(run(proto), run(small(11)))


def test_onnxruntime_runs_what_is_written() -> None:
    runtime = pytest.importorskip("onnxruntime")
    proto = quantise_layers(small(), RANGES, {"a": "int8", "g": "int8", "y": "bf16"})
    session = runtime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    np.testing.assert_allclose(session.run(None, X)[0], run(proto), atol=0.1)


def test_a_model_without_layers_is_refused() -> None:
    empty = model([node("Relu", "x", "y")], {"x": (2,)}, {"y": (2,)})
    with pytest.raises(SpecError, match="no Conv, MatMul or Gemm with constant weights"):
        quantize_model(empty, X)


@pytest.mark.parametrize(
    ("words", "message"),
    [({"method": "mean"}, "method 'mean'"), ({"percentile": 20}, "percentile 20"),
     ({"dtype": "int4"}, "dtype 'int4'"), ({"dtype": "auto"}, "max_loss"),
     ({"max_loss": 0.1}, "max_loss"), ({"dtype": "auto", "max_loss": 2}, "max_loss 2")],
)  # fmt: skip
def test_other_options_are_refused(words: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        quantize_model(small(), X, **words)


@pytest.mark.exhaustive
@pytest.mark.parametrize("budget", [0.0, 0.006, 0.5])
def test_a_budget_holds(budget: float) -> None:
    x = np.stack([reals(1, 2, 5, 5, seed=seed) for seed in range(3)])
    result = quantize_model(small(), {"x": x}, dtype="auto", max_loss=budget)
    assert result.samples == 3
    assert result.loss <= budget
    kinds = {layer.dtype for layer in result.layers}
    assert kinds == {0.0: {"f32"}, 0.5: {"int8"}}.get(budget, kinds)
    session = [ReferenceEvaluator(proto) for proto in (result.model, small())]
    found, wanted = (np.concatenate([own.run(None, {"x": one})[0] for one in x]) for own in session)
    assert loss(found, wanted) == pytest.approx(result.loss, abs=1e-3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy"])
def test_the_command_writes_a_model(method: str, tmp_path: Path, capsys) -> None:
    onnx.save(small(), tmp_path / "small.onnx")
    np.savez(tmp_path / "data.npz", x=np.concatenate([X["x"]] * 2))
    words = ["quantize", f"{tmp_path}/small.onnx", "--data", f"{tmp_path}/data.npz"]
    assert main([*words, "-o", f"{tmp_path}/int8.onnx", "--method", method]) == 0
    printed = capsys.readouterr()
    assert "loss of the network: " in printed.out
    assert "running 2 samples: ends of 3 tensors" in printed.err
    written = onnx.load(tmp_path / "int8.onnx")
    kinds = {numpy_helper.to_array(part).dtype.name for part in written.graph.initializer}
    assert {"int8", "uint8", "int32"} <= kinds
    assert loss(run(written), run(small())) < 0.1


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys) -> None:
    onnx.save(small(), tmp_path / "small.onnx")
    words = ["quantize", f"{tmp_path}/small.onnx", "--data", "no.npz", "-o", "out.onnx"]
    assert main([*words, "--dtype", "auto"]) == 2
    assert "--max-loss: the budget of --dtype auto" in capsys.readouterr().err
    assert main([*words, "--percentile", "99"]) == 2
    assert "--percentile 99: of --method percentile" in capsys.readouterr().err
