"""Operands that lie elsewhere than a layer wants them: stacks, strides, parts, biases."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polysci.frontends.onnx import reference
from polysci.program.stages import RowFusion
from tests.support.networks import network_of, read
from tests.support.onnxmodels import Shape, model, node, reals
from tests.support.rates import fuse_rows_everywhere


def agrees(
    nodes: list[onnx.NodeProto], inputs: dict[str, Shape], outputs: list[str],
    weights: dict[str, np.ndarray], **options: object,
) -> object:  # fmt: skip
    """Compile, run, and compare all outputs with float64."""
    graph = read(model(nodes, inputs, dict.fromkeys(outputs), weights))
    network = network_of(graph, **options)  # type: ignore[arg-type]
    given = {one.name: reals(*one.shape, seed=at) for at, one in enumerate(graph.inputs)}
    expected, found = reference.run(graph, given), network(given)
    assert isinstance(found, dict)
    for name in outputs:
        assert np.allclose(found[name], expected[name], rtol=1e-4, atol=1e-4), name
    return network


@pytest.mark.exhaustive
def test_stacks_that_are_views() -> None:
    """Attention: heads are an axis of the rows, until a transpose names them first."""
    heads = [node("Transpose", f"{name}", f"{name}t", perm=[0, 2, 1, 3]) for name in "qk"]
    nodes = [*heads, node("Transpose", "kt", "kk", perm=[0, 1, 3, 2]), node("MatMul", "qt kk", "y")]
    agrees(nodes, {"q": [1, 5, 2, 8], "k": [1, 5, 2, 8]}, ["y"], {})


def test_stacks_that_are_parts() -> None:
    """The product of each matrix lies inside rows that are wider."""
    nodes = [
        node("MatMul", "q k", "a"), node("Sigmoid", "r", "s"),
        node("Concat", "a s", "c", axis=-1), node("Tanh", "c", "y"),
    ]  # fmt: skip
    agrees(nodes, {"q": [2, 5, 8], "k": [2, 8, 6], "r": [2, 5, 3]}, ["y"], {})


@pytest.mark.exhaustive
def test_rows_that_do_not_run_on() -> None:
    """A token before the rows of every image, and a deep convolution of two images."""
    nodes = [
        node("MatMul", "x w", "a"),
        node("Sigmoid", "t", "s"),
        node("Concat", "s a", "y", axis=1),
    ]
    agrees(nodes, {"x": [2, 5, 8], "t": [2, 1, 6]}, ["y"], {"w": reals(8, 6)})
    deep = [node("Conv", "x w", "y", pads=[1, 0, 0, 1, 0, 0])]
    agrees(deep, {"x": [2, 3, 4, 5, 5]}, ["y"], {"w": reals(4, 3, 3, 2, 2)})


@pytest.mark.exhaustive
def test_a_residual_beside_two_results() -> None:
    """The same tensor is added to parts of two joined tensors of other widths."""
    nodes = [
        node("Relu", "x", "r"),
        node("Conv", "x w", "a"), node("Add", "a r", "b"), node("Conv", "x v", "c"),
        node("Add", "c r", "d"), node("Concat", "b r", "e", axis=1),
        node("Concat", "d r r", "f", axis=1), node("Conv", "e p", "y"), node("Conv", "f q", "z"),
    ]  # fmt: skip
    weights = {"w": reals(4, 4, 1, 1, seed=1), "v": reals(4, 4, 1, 1, seed=2),
               "p": reals(3, 8, 1, 1, seed=3), "q": reals(3, 12, 1, 1, seed=4)}  # fmt: skip
    agrees(nodes, {"x": [1, 4, 6, 6]}, ["y", "z"], weights)


@pytest.mark.exhaustive
def test_a_bias_with_gaps() -> None:
    """Every second element of an input."""
    nodes = [node("Slice", "b from to axis step", "s"), node("Conv", "x w s", "y")]
    weights = {"w": reals(8, 3, 1, 1), "from": np.array([0]), "to": np.array([16]),
               "axis": np.array([0]), "step": np.array([2])}  # fmt: skip
    agrees(nodes, {"x": [1, 3, 5, 5], "b": [16]}, ["y"], weights)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("first", "second"),
    [(("Relu", None), ("Clip", (6.0, 0.0))), (("Clip", (-9.0, -1.0)), ("Relu", None)),
     (("Clip", (0.5, 9.0)), ("Clip", (-1.0, 0.25)))],
)  # fmt: skip
def test_clamps_one_after_the_other(first: tuple, second: tuple) -> None:
    """In the order of the model, also where a lower bound is above the upper one."""
    weights, nodes, at = {"w": reals(4, 3, 1, 1)}, [node("Conv", "x w", "c0")], "c0"
    for number, (op, bounds) in enumerate((first, second), 1):
        words = at
        if bounds:
            weights |= {f"l{number}": np.float32(bounds[0]), f"h{number}": np.float32(bounds[1])}
            words = f"{at} l{number} h{number}"
        at = f"c{number}"
        nodes.append(node(op, words, at))
    agrees(nodes, {"x": [1, 3, 6, 6]}, [at], weights)


@pytest.fixture
def everything_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    fuse_rows_everywhere(monkeypatch)


def stages(network: object) -> list[object]:
    return list(network.code.placed.program.stages)  # type: ignore[attr-defined]


@pytest.mark.exhaustive
def test_one_stage_ends_one_band(everything_in_bands: None) -> None:
    """Two convolutions whose results meet: one of them stays outside."""
    nodes = [
        node("Conv", "x w", "a"), node("Conv", "x v", "b"), node("Sigmoid", "b", "s"),
        node("Mul", "a s", "m"), node("Conv", "m w", "y"),
    ]  # fmt: skip
    weights = {"w": reals(4, 4, 1, 1, seed=1), "v": reals(4, 4, 3, 3, seed=2)[:, :, 1:2, 1:2]}
    network = agrees(nodes, {"x": [1, 4, 9, 9]}, ["y"], {n: v.copy() for n, v in weights.items()})
    made = [
        name for stage in stages(network) if isinstance(stage, RowFusion) for name in stage.internal
    ]
    assert len(made) == len(set(made)) and made


@pytest.mark.exhaustive
def test_computed_weights_are_packed(everything_in_bands: None) -> None:
    """A layer whose weights are an input lies inside, and they are packed before."""
    nodes = [node("Conv", "x w", "a"), node("Conv", "a v", "b"), node("Relu", "b", "c"),
             node("Conv", "c w", "y")]  # fmt: skip
    inputs: dict[str, Shape] = {"x": [1, 4, 9, 9], "v": [4, 4, 3, 3]}
    network = agrees(nodes, inputs, ["y"], {"w": reals(4, 4, 1, 1)})
    fusions = [stage for stage in stages(network) if isinstance(stage, RowFusion)]
    assert any("a" in fusion.internal for fusion in fusions)


@pytest.mark.exhaustive
def test_rows_of_one_column(everything_in_bands: None) -> None:
    """Where the rows are all that a tensor has, they are not taken for its columns."""
    nodes = [
        node("Conv", "x w", "a", pads=[1, 0, 1, 0]),
        node("MaxPool", "a", "b", kernel_shape=[3, 1]),
        node("Conv", "b u", "y"),
    ]
    weights = {"w": reals(1, 4, 3, 1), "u": reals(2, 1, 1, 1)}
    agrees(nodes, {"x": [1, 4, 40, 1]}, ["y"], weights)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 1), (3, 3), (1, 1), ()])
def test_what_a_product_adds(shape: tuple[int, ...]) -> None:
    """A number a column, a row, an element, or one for all."""
    weights = {"w": reals(4, 3, seed=1), "c": np.asarray(reals(*shape, seed=2), np.float32)}
    agrees([node("Gemm", "x w c", "y", beta=0.5)], {"x": [3, 4]}, ["y"], weights)


def test_large_sums_and_wide_strides() -> None:
    """Hundreds of terms in several parts; more residues than layers are worth."""
    names = [f"x{number}" for number in range(70)]
    agrees([node("Sum", " ".join(names), "y")], {name: [3, 4] for name in names}, ["y"], {})
    up = [node("ConvTranspose", "x w", "y", strides=[20, 20])]
    agrees(up, {"x": [1, 2, 2, 2]}, ["y"], {"w": reals(2, 3, 2, 2)})


def test_whole_numbers_wrap() -> None:
    """As NumPy's and ONNX's do."""
    info = helper.make_tensor_value_info
    most = np.array([2**31 - 1, -(2**31)], np.int32)
    graph = helper.make_graph(
        [node("Add", "x w", "s"), node("Mul", "s w", "y")], "wrap",
        [info("x", TensorProto.INT32, [2])], [info("y", TensorProto.INT32, [2])],
        [numpy_helper.from_array(most, "w")],
    )  # fmt: skip
    one = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    x = np.array([5, -7], np.int32)
    assert (network_of(read(one))(x) == (x + most) * most).all()


def test_softmax_of_older_opsets() -> None:
    """Over all axes from the first on, in the reference as well."""
    one = model([node("Softmax", "x", "y")], {"x": [2, 3, 4, 1]}, {"y": None}, opset=11)
    x = reals(2, 3, 4, 1)
    rows = np.exp(x.reshape(2, 12))
    expected = (rows / rows.sum(1, keepdims=True)).reshape(x.shape)
    graph = read(one)
    assert np.allclose(reference.run(graph, {"x": x})["y"], expected)
    assert np.allclose(network_of(graph)(x), expected, atol=1e-6)
