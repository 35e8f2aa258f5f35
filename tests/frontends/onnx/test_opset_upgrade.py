"""Operators of older opsets against NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from polysci.errors import UnsupportedError
from polysci.frontends.onnx import reference
from polysci.frontends.onnx.importer import graph_of
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals

Array = np.ndarray
X = reals(2, 3, 4, 5)
C, LAST = reals(3, seed=1), reals(4, 5, seed=2)
ALL = ("s", "t", "u", "v")


def along(values: Array) -> Array:
    return values.reshape(3, 1, 1)


def pooled(p: int) -> Array:
    made: Array = (np.abs(X.astype(float)) ** p).sum((2, 3), keepdims=True) ** (1 / p)
    return made


CASES: dict[str, tuple[int, onnx.NodeProto, dict[str, Array], Callable[[], Any]]] = {
    "along axis 1": (
        6, node("Add", "x c", "y", broadcast=1, axis=1), {"c": C}, lambda: X + along(C),
    ),
    "from the end": (
        6, node("Mul", "x c", "y", broadcast=1, axis=-2), {"c": LAST}, lambda: X * LAST,
    ),
    "the last axes": (1, node("Sub", "x c", "y", broadcast=1), {"c": LAST}, lambda: X - LAST),
    "memory shared": (
        1, node("Div", "x c", "y", broadcast=1, axis=1, consumed_inputs=[0, 0]), {"c": C + 2},
        lambda: X / along(C + 2),
    ),
    "slopes": (
        6, node("PRelu", "x c", "y"), {"c": C}, lambda: np.where(X < 0, X * along(C), X),
    ),
    "normal": (
        6, node("BatchNormalization", "x s t u v", "y", is_test=1, epsilon=0.1),
        dict(zip(ALL, (C, C + 1, C * 2, C**2), strict=True)),
        lambda: (X - along(2 * C)) / np.sqrt(along(C**2) + 0.1) * along(C) + along(C + 1),
    ),
    "dropped": (6, node("Dropout", "x", "y", is_test=1, ratio=0.5), {}, lambda: X),
    "shape": (1, node("Reshape", "x", "y", shape=[2, 0, -1]), {}, lambda: X.reshape(2, 3, 20)),
    "word": (1, node("Cast", "x", "y", to="FLOAT"), {}, lambda: X),
    "channels": (1, node("Concat", "x x", "y"), {}, lambda: np.concatenate([X, X], 1)),
    "pads": (
        1, node("Pad", "x", "y", paddings=[0, 0, 1, 0, 0, 0, 0, 2], value=3.0), {},
        lambda: np.pad(X, [(0, 0), (0, 0), (1, 0), (0, 2)], constant_values=3.0),
    ),
    "power": (1, node("GlobalLpPool", "x", "y", p=3.0), {}, lambda: pooled(3)),
    "selu": (
        1, node("Selu", "x", "y"), {},
        lambda: 1.0507 * np.where(X > 0, X, 1.6732 * np.expm1(X)),
    ),
    "split": (
        1, node("Split", "x n", "y z", axis=1), {"n": np.array([1, 2], np.float32)},
        lambda: X[:, :1],
    ),
    "tile": (
        1, node("Tile", "x n a", "y"),
        {"n": np.array([2], np.float32), "a": np.array([3], np.float32)},
        lambda: np.tile(X, (1, 1, 1, 2)),
    ),
    "upsample": (
        1, node("Upsample", "x", "y", height_scale=2.0, width_scale=3.0, mode="nearest"), {},
        lambda: X.repeat(2, 2).repeat(3, 3),
    ),
}  # fmt: skip


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("name", CASES)
def test_as_it_was(name: str) -> None:
    opset, one, weights, expected = CASES[name]
    graph = read(model([one], {"x": list(X.shape)}, {"y": None}, weights, opset))
    made = network_of(graph)({"x": X})
    np.testing.assert_allclose(made["y"], expected(), rtol=2e-5, atol=1e-5)


@pytest.mark.exhaustive
def test_matrices_and_recurrent_nodes() -> None:
    a, b, c = reals(4, 6), reals(6, 5, seed=1), reals(5, seed=2)
    gemm = node("Gemm", "x b c", "y", broadcast=1)
    made = network_of(read(model([gemm], {"x": [4, 6]}, {"y": None}, {"b": b, "c": c}, 6)))
    np.testing.assert_allclose(made({"x": a})["y"], a @ b + c, rtol=1e-5, atol=1e-5)
    weights = {"w": reals(1, 3, 6, seed=3), "r": np.zeros((1, 3, 3), np.float32)}
    rnn = node("RNN", "x w r", "y", hidden_size=3, output_sequence=1)
    made = network_of(read(model([rnn], {"x": [2, 1, 6]}, {"y": None}, weights, 6)))
    x = reals(2, 1, 6)
    exact = np.tanh(x @ weights["w"][0].T)[:, None]
    np.testing.assert_allclose(made({"x": x})["y"], exact, rtol=1e-5, atol=1e-5)


def test_attributes_without_a_meaning_are_left_out() -> None:
    relu = model([node("Relu", "x", "y", consumed_inputs=[0])], {"x": [2]}, {"y": None}, opset=1)
    assert not graph_of(relu).nodes[0].attributes


def operators(nodes: list[onnx.NodeProto], opset: int) -> list[tuple[str, str, tuple[str, ...]]]:
    graph = graph_of(model(nodes, {"x": list(X.shape)}, {"y": None}, opset=opset))
    return [(node.op, node.name, node.outputs) for node in graph.nodes]


def test_nodes_keep_their_names() -> None:
    clip = helper.make_node("Clip", ["x"], ["y"], "bounds", min=0.0)
    assert operators([clip], 6) == operators([clip], 9) == [("clip", "bounds", ("y",))]
    softmax = helper.make_node("Softmax", ["x"], ["y"], "shares", axis=2)
    assert [op for op, *_ in operators([softmax], 12)] == ["reshape", "softmax", "reshape"]
    assert operators([softmax], 12)[1][1] == "shares"
    assert operators([softmax], 13) == [("softmax", "shares", ("y",))]


@pytest.mark.parametrize("axis", [1, -2])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_the_old_kin_of_softmax_flatten(op: str, axis: int) -> None:
    """The newer one along the last axis, of what is flattened."""
    x = reals(2, 3, 4)
    newer = node(op, "x", "y", axis=1)
    (wanted,) = ReferenceEvaluator(newer).run(None, {"x": x.reshape(2, 12)})
    for shape in ((2, 3, 4), (0, 3, 4)):
        older = model([node(op, "x", "y", axis=axis)], {"x": list(shape)}, {"y": None}, opset=11)
        made = reference.run(graph_of(older), {"x": x[: shape[0]]}, "float32")["y"]
        np.testing.assert_allclose(made, wanted.reshape(2, 3, 4)[: shape[0]], rtol=1e-6)


def test_statistics_of_every_pixel_are_refused() -> None:
    inputs = dict.fromkeys(ALL, np.ones(60, np.float32))
    normal = node("BatchNormalization", "x s t u v", "y", spatial=0)
    with pytest.raises(UnsupportedError, match="spatial 0"):
        graph_of(model([normal], {"x": list(X.shape)}, {"y": None}, inputs, 8))


def test_tiles_that_are_computed_are_refused() -> None:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node("Tile", "x n a", "y")], "tiles",
        [info("x", TensorProto.FLOAT, [2]), *(info(n, TensorProto.FLOAT, [1]) for n in "na")],
        [info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    old = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 1)])
    with pytest.raises(UnsupportedError, match=r"tile .* 'n' is not constant"):
        graph_of(old)
