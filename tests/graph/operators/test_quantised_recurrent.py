"""DynamicQuantizeLSTM: both factors of a product have 8 bits, as ONNX Runtime computes it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polysci.frontends.onnx import reference
from polysci.graph.graph import QUANTISED_LSTM
from tests.support.networks import network_of, read
from tests.support.onnxmodels import node, reals

pytestmark = pytest.mark.sampled

STEPS, BATCH, SIZE, HIDDEN = 5, 2, 7, 16
Array = np.ndarray


def weights_of(directions: int, *, each: bool, zero: int) -> dict[str, Array]:
    """W and R of 8 bits, a scale for all rows or for each, and zeros."""
    random, kind = np.random.default_rng(3), np.uint8 if zero else np.int8
    made = {"b": reals(directions, 8 * HIDDEN, seed=4), "h": reals(directions, BATCH, HIDDEN)}
    for name, depth in (("w", SIZE), ("r", HIDDEN)):
        whole = random.integers(-128, 128, (directions, depth, 4 * HIDDEN))
        shape = (directions, 4 * HIDDEN) if each else (directions,)
        made[name] = (whole + zero).astype(kind)
        made[f"{name}s"] = random.uniform(0.002, 0.01, shape).astype(np.float32)
        made[f"{name}z"] = np.full(shape, zero, kind)
    return made


def model_of(weights: dict[str, Array], direction: str, *loose: str) -> onnx.ModelProto:
    """``loose`` weights are inputs."""
    names = ["x", "w", "r", "b", "", "h", "", "", "ws", "wz", "rs", "rz"]
    one = helper.make_node("DynamicQuantizeLSTM", names, ["y", "y_h", "y_c"], "the LSTM",
                           domain="com.microsoft", direction=direction,
                           hidden_size=HIDDEN)  # fmt: skip
    info = helper.make_tensor_value_info
    inputs = [info("x", TensorProto.FLOAT, (STEPS, BATCH, SIZE))]
    for name in loose:
        kind = helper.np_dtype_to_tensor_dtype(weights[name].dtype)
        inputs.append(info(name, kind, weights[name].shape))
    known = [numpy_helper.from_array(v, n) for n, v in weights.items() if n not in loose]
    outputs = [info(name, TensorProto.FLOAT, None) for name in ("y", "y_h", "y_c")]
    graph = helper.make_graph([one], "small", inputs, outputs, known)
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains)


def product(x: Array, whole: Array, scale: Array) -> Array:
    """``x @ whole * scale`` with x in 255 steps of its range."""
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    step = (high - low) / np.float32(255) if high > low else np.float32(1)
    zero = np.rint(-low / step)
    numbers = np.clip(np.rint(x / step) + zero, 0, 255) - zero
    made: Array = (numbers.astype(np.int64) @ whole) * (step * scale)
    return made.astype(np.float32)


def expected(weights: dict[str, Array], x: Array, backwards: list[bool]) -> Iterator[Array]:
    """Y of every direction, in turn."""
    for d, back in enumerate(backwards):
        w, r = (weights[n][d].astype(np.int64) - int(weights[f"{n}z"].flat[0]) for n in "wr")
        bias = weights["b"][d].reshape(2, -1).sum(0)
        h, c, y = (
            weights["h"][d],
            np.zeros((BATCH, HIDDEN), np.float32),
            np.zeros((STEPS, BATCH, HIDDEN), np.float32),
        )
        ahead = product(x, w, weights["ws"][d]) + bias
        for t in range(STEPS)[:: -1 if back else 1]:
            i, o, f, g = np.split(ahead[t] + product(h, r, weights["rs"][d]), 4, 1)
            i, o, f = (1 / (1 + np.exp(-gate)) for gate in (i, o, f))
            c = f * c + i * np.tanh(g)
            y[t] = h = o * np.tanh(c)
        yield y


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("direction", "each", "zero"),
    [("forward", False, 0), ("reverse", True, 128), ("bidirectional", True, 0)],
)
def test_both_factors_have_8_bits(direction: str, each: bool, zero: int) -> None:
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    weights = weights_of(len(backwards), each=each, zero=zero)
    graph = read(model_of(weights, direction))
    assert [one.op for one in graph.nodes] == [QUANTISED_LSTM]
    x = reals(STEPS, BATCH, SIZE, seed=5)
    network = network_of(graph)
    kinds = [layer.problem.dtype for layer in network.prepared.program.layers()]
    assert kinds and set(kinds) == {"u8:s8:s32"}
    made, exact = network({"x": x}), reference.run(graph, {"x": x})
    for d, y in enumerate(expected(weights, x, backwards)):
        np.testing.assert_allclose(made["y"][:, d], y, atol=2e-6)
        np.testing.assert_allclose(exact["y"][:, d], y, atol=2e-6)
    for name in ("y_h", "y_c"):
        np.testing.assert_allclose(made[name], exact[name], atol=2e-6)


@pytest.mark.exhaustive
def test_nothing_to_round() -> None:
    """x and h of zeros have no range."""
    weights = weights_of(1, each=False, zero=0) | {"h": np.zeros((1, BATCH, HIDDEN), np.float32)}
    x = np.zeros((STEPS, BATCH, SIZE), np.float32)
    (y,) = expected(weights, x, [False])
    made = network_of(read(model_of(weights, "forward")))({"x": x})
    np.testing.assert_allclose(made["y"][:, 0], y, atol=2e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", ["inputs", "beyond 8 bits"])
def test_other_weights_are_real_numbers(case: str) -> None:
    weights = weights_of(1, each=False, zero=128 if case == "beyond 8 bits" else 0)
    loose: tuple[str, ...] = ("w", "r")
    if case == "beyond 8 bits":
        loose, weights["rz"] = (), np.array([7], np.uint8)
    network = network_of(read(model_of(weights, "forward", *loose)))
    assert {layer.problem.dtype for layer in network.prepared.program.layers()} <= {"f32"}
    x = reals(STEPS, BATCH, SIZE, seed=5)
    real = {
        n: (weights[n].astype(float) - float(weights[f"{n}z"][0])) * weights[f"{n}s"][0]
        for n in "wr"
    }
    inputs: dict[str, Any] = {"x": x, **{name: weights[name] for name in loose}}
    sizes = {n: v.shape for n, v in {"x": x, "h": weights["h"]}.items()}
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in sizes.items()]
    known = {n: v.transpose(0, 2, 1).astype(np.float32) for n, v in real.items()}
    plain = helper.make_model(helper.make_graph(
        [node("LSTM", "x w r b  h", "y", hidden_size=HIDDEN)], "plain", info,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v, n) for n, v in {**known, "b": weights["b"]}.items()],
    ), opset_imports=[helper.make_opsetid("", 17)])  # fmt: skip
    plain.graph.node[0].input[:] = ["x", "w", "r", "b", "", "h"]
    exact = reference.run(read(plain), {"x": x, "h": weights["h"]})
    np.testing.assert_allclose(network(inputs)["y"], exact["y"], atol=2e-5)
