"""Where ONNX is vague, or runtimes differ: one meaning, or a refusal that names the node."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.onnx.importer import graph_of, load
from polysci.graph.passes.table import simplify
from polysci.network.prepare import prepare
from polysci.target.host import detect
from tests.support.networks import disagreement, network_of, read
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
    with pytest.raises(SpecError, match=r"'reshape Reshape of y': 24 elements of shape \[2, 3, 4\] "
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


def test_attributes_that_are_newer_than_the_operators_here() -> None:
    """SpaceToDepth has had a mode since opset 28, and Squeeze no other attribute than ``axes``."""
    blocks = small("SpaceToDepth", [1, 1, 4, 4], 28, blocksize=2, mode="CRD")
    assert "space_to_depth" not in {step.op for step in read(blocks).nodes}
    plain = small("SpaceToDepth", [1, 1, 4, 4], 28, blocksize=2)
    assert [step.op for step in read(plain).nodes] == ["space_to_depth"]


def test_half_of_the_frequencies() -> None:
    weights = {"s": np.array(2), "n": np.array(4)}
    one = model([node("STFT", "x s - n", "y")], {"x": [1, 8, 1]}, {"y": None}, weights)
    assert graph_of(one).outputs[0].shape == (1, 3, 3, 2)


def test_depths_and_shapes_that_onnx_does_not_infer() -> None:
    weights = {"d": np.array(3), "v": reals(2)}
    nodes = [node("Cast", "x", "i", to=7), node("OneHot", "i d v", "y", axis=0)]
    assert graph_of(model(nodes, {"x": [2]}, {"y": None}, weights)).outputs[0].shape == (3, 2)


@pytest.mark.parametrize("words", [
    {"mode": "cubic"}, {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5},
    {"mode": "cubic", "antialias": 1}, {"mode": "linear", "antialias": 1},
])  # fmt: skip
def test_filters_of_resize(words: dict[str, Any]) -> None:
    weights = {"s": np.float32([1, 1, 0.6, 1.5])}
    one = model([node("Resize", "x - s", "y", **words)], {"x": [1, 2, 5, 4]}, {"y": None}, weights,
                18)  # fmt: skip
    x = reals(1, 2, 5, 4)
    (expected,) = ReferenceEvaluator(one).run(None, {"x": x})
    np.testing.assert_allclose(result(one, x), expected, rtol=1e-4, atol=1e-5)


def test_products_of_bytes() -> None:
    """With a zero for every row and column; sums that f32 would round."""
    random = np.random.default_rng(0)
    a, b = (random.integers(0, 256, shape).astype(np.uint8) for shape in ((3, 600), (600, 2)))
    zeros = {"za": np.uint8([1, 2, 3]), "zb": np.uint8([4, 5])}
    one = model([node("MatMulInteger", "x b za zb", "y")], {"x": [3, 600]}, {"y": None},
                {"b": b, **zeros})  # fmt: skip
    one.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    wide = (a.astype(int) - [[1], [2], [3]]) @ (b.astype(int) - [4, 5])
    np.testing.assert_array_equal(result(one, a), wide)


def test_scaled_products_of_bytes() -> None:
    random = np.random.default_rng(0)
    a, b = (random.integers(0, 256, shape).astype(np.uint8) for shape in ((3, 6), (6, 2)))
    weights = {"b": b, "s": np.float32(0.05), "z": np.uint8(7), "t": np.float32(0.9)}
    one = model(
        [node("QLinearMatMul", "x s z b s z t z", "y")], {"x": [3, 6]}, {"y": None}, weights
    )
    one.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    total = (a.astype(int) - 7) @ (b.astype(int) - 7)
    expected = np.clip(np.rint(total * (np.float32(0.05) ** 2.0 / np.float32(0.9))) + 7, 0, 255)
    np.testing.assert_array_equal(result(one, a), expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
def test_transposed_convolutions_of_one_filter(isa: str) -> None:
    """Pixels of a phase are no neighbours in the result, though there is one channel."""
    if detect().refusal(isa):
        pytest.skip(f"no {isa} here")
    nodes, inputs, weights, outputs = [], dict[str, Any](), dict[str, np.ndarray](), list[str]()
    for at, (channels, taps, step) in enumerate(((1, 3, 2), (8, 2, 2), (2, 2, 3), (8, 4, 2))):
        inputs[f"x{at}"], outputs = (1, channels, 5, 7), [*outputs, f"y{at}"]
        weights[f"w{at}"] = reals(channels, 1, taps, taps)
        nodes.append(node("ConvTranspose", f"x{at} w{at}", f"y{at}", strides=[step, step],
                          output_padding=[step - 1, 0]))  # fmt: skip
    one = model(nodes, inputs, dict.fromkeys(outputs), weights)
    assert not disagreement(read(one), 1, "f32", fuse=True, isa=isa)


def test_slices_by_attributes_may_end_outside() -> None:
    one = small("Slice", [1, 5], 9, starts=[-4, -7], ends=[4, -1], axes=[0, 1])
    x = reals(1, 5)
    np.testing.assert_array_equal(result(one, x), x[:, :4])


def test_comparisons_before_opset_16() -> None:
    nodes = [node("LessOrEqual", "x w", "b"), node("Cast", "b", "y", to=1)]
    one = model(nodes, {"x": [2, 1]}, {"y": None}, {"w": reals(3)}, 12)
    np.testing.assert_array_equal(result(one, reals(2, 1)), reals(2, 1) <= reals(3))


@pytest.mark.exhaustive
@pytest.mark.parametrize("bits", [np.uint8, np.int8])
def test_zeros_that_are_computed(bits: type) -> None:
    """As quantisation at run time has them: convolutions with padding, and matrix products."""
    random = np.random.default_rng(0)
    w, v = random.integers(-9, 10, (4, 3, 3, 3)), random.integers(0, 256, (6, 2))
    weights = {"w": w.astype(np.int8), "v": v.astype(np.uint8), "n": np.uint8(99)}
    words = {"pads": [1, 0, 1, 2], "strides": [2, 1]}
    nodes = [node("ConvInteger", "x w z", "c", **words), node("MatMulInteger", "x v z n", "m")]
    one = model(nodes, {"x": [1, 3, 5, 6], "z": []}, {"c": None, "m": None}, weights)
    for value in one.graph.input:
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(bits))
    graph = simplify(read(one))
    assert all(not step.input(2) for step in graph.nodes if step.op.startswith("integer_"))
    network = network_of(graph)
    x, z = random.integers(0, 99, (1, 3, 5, 6)).astype(bits), np.array(7, bits)
    made = network({"x": x, "z": z})
    expected = ReferenceEvaluator(one).run(None, {"x": x, "z": z})
    np.testing.assert_array_equal(made["m"], expected[1])  # weights from -99 to 156
    wide = np.pad(x.astype(int) - 7, ((0, 0), (0, 0), (1, 1), (0, 2)))
    parts = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))[:, :, ::2]
    np.testing.assert_array_equal(made["c"], np.einsum("nchwrs,kcrs->nkhw", parts, w))
