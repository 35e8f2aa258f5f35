"""Where ONNX is vague, or runtimes differ: one meaning, or a refusal that names the node."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from polysci.errors import SpecError, UnsupportedError
from polysci.network.compile.prepare import prepare
from polysci.network.frontends.onnx.importer import graph_of, load
from polysci.network.frontends.onnx.simplify import simplify
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals


def result(one: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    network = network_of(read(one))
    made = network({"x": x})["y"]
    assert isinstance(made, np.ndarray)
    return made


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("opset", [12, 22])
def test_no_window_of_a_pool_starts_outside(op: str, opset: int) -> None:
    """Of 5 elements with stride 4 and padding 1, the third window would start at 7."""
    pool = node(op, "x", "y", kernel_shape=[1], strides=[4], pads=[0, 1], ceil_mode=1)
    made = result(model([pool], {"x": [1, 1, 5]}, {"y": None}, opset=opset), reals(1, 1, 5))
    np.testing.assert_array_equal(made, reals(1, 1, 5)[:, :, ::4])


def test_readers_of_such_a_pool_know_its_shape() -> None:
    nodes = [node("MaxPool", "x", "p", kernel_shape=[1], strides=[4], pads=[0, 1], ceil_mode=1),
             node("Add", "p w", "y")]  # fmt: skip
    one = model(nodes, {"x": [1, 1, 5]}, {"y": None}, {"w": reals(1, 1, 2)})
    assert graph_of(one).outputs[0].shape == (1, 1, 2)


def test_corners_are_those_of_whole_pixels() -> None:
    """2 x 1.3 pixels are 2, and the last of them is the last of x, as in ONNX Runtime."""
    weights = {"s": np.float32([1, 1, 1.3])}
    words: dict[str, Any] = {"mode": "linear",
                             "coordinate_transformation_mode": "align_corners"}  # fmt: skip
    one = model([node("Resize", "x - s", "y", **words)], {"x": [1, 1, 2]}, {"y": None}, weights)
    np.testing.assert_array_equal(result(one, reals(1, 1, 2)), reals(1, 1, 2))


def test_wrapping_sees_what_is_left() -> None:
    """Padding by -1 takes the first element away before the rest is repeated."""
    weights = {"p": np.array([-1, 2])}
    one = model([node("Pad", "x p", "y", mode="wrap")], {"x": [4]}, {"y": None}, weights, 19)
    x = reals(4)
    np.testing.assert_array_equal(result(one, x), x[[1, 2, 3, 1, 2]])


def shaped() -> onnx.ModelProto:
    weights = {"to": np.array([1, 12])}
    return model([node("Reshape", "x to", "y")], {"x": ["N", 3, 4]}, {"y": None}, weights)


def test_a_reshape_keeps_every_element() -> None:
    assert graph_of(shaped(), {"N": 1}).outputs[0].shape == (1, 12)
    with pytest.raises(SpecError, match=r"'Reshape Reshape of y': 24 elements of shape \[2, 3, 4\] "
                       r"do not fill the shape \[1, 12\] that the model fixes"):  # fmt: skip
        graph_of(shaped(), {"N": 2})


def small(op: str, shape: list[int], opset: int = 17, **words: Any) -> onnx.ModelProto:
    return model([node(op, "x", "y", **words)], {"x": shape}, {"y": None}, opset=opset)


def pool(auto_pad: str) -> onnx.ModelProto:
    return small("MaxPool", [1, 1, 4], kernel_shape=[2], auto_pad=auto_pad)


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (small("Transpose", [2, 3, 4], perm=[1, 0]), "Transpose of y"),
        (small("Transpose", [2, 3], perm=[0, 0]), "Transpose of y"),
        (small("Flatten", [2, 3], axis=3), "Flatten of y"),
        (small("Flatten", [2, 3], axis=-3), "Flatten of y"),
        (pool("SAME"), "auto_pad SAME: expected one of NOTSET, SAME_UPPER"),
        (small("ReduceMean", [2, 3], axes=[1, 1]), r"axes \(1, 1\) name an axis twice"),
        (small("ReduceMean", [2, 3], axes=[1, -1]), r"axes \(1, -1\) name an axis twice"),
        (small("ReduceMean", [2, 3], axes=[2]), "ReduceMean of y"),
    ],
)
def test_contradictions_are_refused(one: onnx.ModelProto, message: str) -> None:
    with pytest.raises((SpecError, UnsupportedError), match=message):
        prepare(simplify(read(one)))


def test_names_are_given_once() -> None:
    one = model([node("Add", "x w", "y")], {"x": [2]}, {"y": None}, {"w": reals(2)})
    one.graph.initializer.append(numpy_helper.from_array(reals(2, seed=1), "w"))
    with pytest.raises(SpecError, match="two initialisers are named 'w'"):
        load(one)
    twice = model([node("Relu", "x", "y")], {"x": [2]}, {"y": None})
    twice.graph.input.append(helper.make_tensor_value_info("x", 1, [3]))
    with pytest.raises(SpecError, match="two inputs are named 'x'"):
        load(twice)
