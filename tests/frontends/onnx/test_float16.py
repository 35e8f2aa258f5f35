"""Models of float16 compute in f32; what a Cast or an output makes is rounded."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polysci.frontends.onnx.model_file import widen_float16
from polysci.network.compiled import compile_network
from tests.support.onnxmodels import node

HALF, REAL = TensorProto.FLOAT16, TensorProto.FLOAT
SMALLEST = 2.0**-126


def model_of(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, ...]], outputs: dict[str, int],
    weights: dict[str, np.ndarray] | None = None, kind: int = HALF,
) -> onnx.ModelProto:  # fmt: skip
    """Inputs of one element type, outputs of their own."""
    graph = helper.make_graph(
        nodes, "float16",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, own, None) for name, own in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def float16_values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float16)


def run(model: onnx.ModelProto, **inputs: np.ndarray) -> dict[str, Any]:
    results: dict[str, Any] = compile_network(model, "estimate")(inputs)
    return results


def test_every_number_is_rounded_as_numpy_does() -> None:
    bits = np.arange(1 << 16, dtype=np.uint32)
    ties = (bits << 13) | 0x38000000
    patterns = np.concatenate([bits << 16, (bits << 16) | 0x1001, ties, ties | 0x80000001])
    x = patterns.view(np.float32)
    x = np.where(np.abs(x) < SMALLEST, 0, x)
    casts = [node("Cast", "x", "half", to=HALF), node("Cast", "half", "back", to=REAL)]
    made = model_of([*casts, node("Neg", "back", "y")], {"x": x.shape}, {"half": HALF, "y": REAL},
                    kind=REAL)  # fmt: skip
    results = run(made, x=x)
    with np.errstate(over="ignore"):
        wanted = x.astype(np.float16)
    assert results["half"].dtype == np.float16
    np.testing.assert_array_equal(results["half"], wanted)
    np.testing.assert_array_equal(results["y"], -wanted.astype(np.float32))


@pytest.mark.exhaustive
def test_weights_and_what_lies_between_are_f32() -> None:
    """1000 * 1000 exceeds float16; 2049 needs a digit more than it has."""
    x, w = float16_values(1, 3, 8, 8), float16_values(4, 3, 3, 3, seed=1)
    large, small = np.array(1000, np.float16), np.array(1e-3, np.float16)
    nodes = [
        node("Conv", "x w", "conv", pads=[1, 1, 1, 1]), node("Mul", "conv large", "a"),
        node("Mul", "a large", "b"), node("Mul", "b small", "c"), node("Mul", "c small", "y"),
    ]  # fmt: skip
    weights = {"w": w, "large": large, "small": small}
    model = model_of(nodes, {"x": x.shape}, {"y": HALF}, weights)
    before = model.SerializeToString()
    y = run(model, x=x)["y"]
    assert model.SerializeToString() == before
    rows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x.astype(float), [(0, 0), (0, 0), (1, 1), (1, 1)]), (3, 3), (2, 3)
    )
    exact = np.einsum("bchwrs,kcrs->bkhw", rows, w.astype(float))
    factor = (1000 * float(small)) ** 2
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, exact * factor, rtol=2**-10, atol=2**-10)


def test_branches_hold_float16_as_well() -> None:
    def branch(name: str, value: float) -> onnx.GraphProto:
        constant = numpy_helper.from_array(np.array([value], np.float16))
        nodes = [node("Constant", "", "k", value=constant), node("Mul", "x k", name)]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, HALF, None)])

    x = float16_values(5)
    choice = node("If", "c", "y", then_branch=branch("t", 2), else_branch=branch("e", 3))
    nodes = [node("ReduceMax", "x", "m", keepdims=0), node("Cast", "m", "c", to=TensorProto.BOOL)]
    results = run(model_of([*nodes, choice], {"x": x.shape}, {"y": HALF}), x=x)
    np.testing.assert_array_equal(results["y"], 2 * x)


def test_names_that_are_taken() -> None:
    x = float16_values(4)
    nodes = [node("Add", "x x", "x.f32"), node("Neg", "x.f32", "y")]
    results = run(model_of(nodes, {"x": x.shape}, {"y": HALF, "x.f32": HALF, "x": HALF}), x=x)
    np.testing.assert_array_equal(results["y"], -2 * x)
    np.testing.assert_array_equal(results["x.f32"], 2 * x)
    np.testing.assert_array_equal(results["x"], x)


@pytest.mark.parametrize("op", ["EyeLike", "ConstantOfShape"])
def test_types_that_attributes_name(op: str) -> None:
    x = np.ones((3, 3), np.float16)
    if op == "EyeLike":
        first, wanted = node(op, "x", "e", dtype=HALF), np.eye(3) + 1
    else:
        value = numpy_helper.from_array(np.array([7], np.float16))
        first, wanted = node(op, "s", "e", value=value), np.full((3, 3), 8)
    weights = {"s": np.array([3, 3], np.int64)}
    model = model_of([first, node("Add", "x e", "y")], {"x": x.shape}, {"y": HALF}, weights)
    np.testing.assert_array_equal(run(model, x=x)["y"], wanted)


def test_models_without_float16_stay_as_they_are() -> None:
    model = model_of([node("Neg", "x", "y")], {"x": (3,)}, {"y": REAL}, kind=REAL)
    assert widen_float16(model) is model
