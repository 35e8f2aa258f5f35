"""ONNX files become graphs: shapes, what is known ahead, and every kind of damage named."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.onnx.importer import graph_of, load
from polysci.frontends.onnx.model_file import check_model
from polysci.frontends.onnx.tensors import MOST_BYTES, MOST_FOLDED
from polysci.graph.graph import Node
from tests.support.onnxmodels import model, node, reals

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
# Nodes and constants that are left of each model of the onnx package, and its result.
KEPT = {
    "bvlc_alexnet": (24, 17, (1, 1000)), "densenet121": (668, 848, (1, 1000, 1, 1)),
    "inception_v1": (143, 117, (1, 1000)), "inception_v2": (371, 486, (1, 1000)),
    "resnet50": (176, 268, (1, 1000)), "shufflenet": (203, 281, (1, 1000)),
    "squeezenet": (66, 52, (1, 1000, 1, 1)), "vgg19": (46, 39, (1, 1000)),
    "zfnet512": (22, 17, (1, 1000)),
}  # fmt: skip


def saved(path: Path, one: onnx.ModelProto, name: str = "model.onnx") -> Path:
    (path / name).write_bytes(one.SerializeToString())
    return path / name


def layer(channels: int = 3) -> onnx.ModelProto:
    return model(
        [node("Conv", "x w b", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "y")],
        {"x": ["N", channels, 8, "W"]}, {"y": None},
        {"w": reals(5, 3, 3, 3), "b": reals(5)},
    )  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", KEPT)
def test_models_of_the_onnx_package(name: str) -> None:
    graph = load(LIGHT / f"light_{name}.onnx")
    assert (len(graph.nodes), len(graph.constants), graph.outputs[0].shape) == KEPT[name]
    assert [tensor.shape for tensor in graph.inputs] == [(1, 3, 224, 224)]
    assert all(tensor.shape and tensor.dtype for tensor in graph.tensors.values())
    held = sum(value.base.nbytes if value.base is not None else value.nbytes
               for value in graph.constants.values())  # fmt: skip
    assert held < 1 << 20  # constants of one value are held once


def test_dimensions_are_bound_by_name_and_by_place(tmp_path: Path) -> None:
    path = saved(tmp_path, layer())
    for dims in ({"N": 2, "W": 9}, {"N": 2, "x.3": 9}):
        graph = load(path, dims)
        assert [str(tensor) for tensor in graph.inputs] == ["x: float32[2, 3, 8, 9]"]
        assert graph.tensors["c"].shape == graph.outputs[0].shape == (2, 5, 8, 9)
    assert list(graph.lines()) == [
        "conv(x, w, b) -> c: float32[2, 5, 8, 9]", "relu(c) -> y: float32[2, 5, 8, 9]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({}, r"input 'x': dimension 0 \('N'\) is free; bind it, as in --dim N=1"),
        ({"N": 1}, r"dimension 3 \('W'\) is free"),
        ({"N": 1, "W": 4, "Z": 1}, "dimension 'Z': no input has a free one"),
        ({"N": 0, "W": 4}, "dimension N=0: expected 1 to"),
        ({"N": 1 << 31, "W": 4}, "expected 1 to"),
        ({"N": 1 << 30, "W": 1 << 30}, r"'c' has shape \[1073741824, 5, 8, 1073741824\]"),
    ],
)
def test_free_dimensions_must_be_bound(tmp_path: Path, dims: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load(saved(tmp_path, layer()), dims)


def test_arithmetic_on_shapes_is_done_ahead() -> None:
    """As exporters write a flattening: shape, one entry of it, a list, a reshape."""
    one = np.array(1, np.int64)
    graph = graph_of(model(
        [
            node("Shape", "x", "s"), node("Gather", "s zero", "n", axis=0),
            node("Unsqueeze", "n axes", "nn"), node("Concat", "nn minus", "to", axis=0),
            node("Mul", "to ones", "same"), node("Reshape", "x same", "y"),
            node("Add", "w w", "unused"),
        ],
        {"x": [2, 3, 4]}, {"y": None},
        {"zero": one * 0, "axes": one.reshape(1) * 0, "minus": -one.reshape(1),
         "ones": np.ones(2, np.int64), "w": reals(2)},
    ))  # fmt: skip
    assert [node.op for node in graph.nodes] == ["reshape"]
    assert graph.outputs[0].shape == (2, 12)
    assert graph.constants["same"].tolist() == [2, -1] and set(graph.constants) == {"same"}


def test_every_unsupported_node_is_named_at_once() -> None:
    graph = model(
        [node("Relu", "x", "a"), node("Det", "a", "b"), node("Wibble", "b", "c"),
         node("Abs", "c", "y"), node("Det", "a", "unused")],
        {"x": [2, 2]}, {"y": [1]},
    )  # fmt: skip
    with pytest.raises(
        UnsupportedError,
        match=r"(?s)3 unsupported nodes:.*1 x det \('det Det of b'\): polysci has no such "
        r"operator\n.*1 x Wibble .*1 x abs ",
    ):
        graph_of(graph, supported={"relu"})


def test_foreign_nodes_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing each to each would take hours for as many as a file may have."""
    nodes = [node("Wibble", f"a{at}", f"a{at + 1}") for at in range(3)]
    monkeypatch.setattr(Node, "__eq__", lambda one, other: pytest.fail("compared"))
    with pytest.raises(UnsupportedError, match="3 unsupported nodes"):
        graph_of(model(nodes, {"a0": [1]}, {"a3": [1]}))


def number(value: float, dtype: str = "int64") -> np.ndarray:
    return np.array(value, dtype)


@pytest.mark.parametrize(
    ("op", "inputs", "size"),
    [
        ("Expand", {"v": reals(), "to": number(1 << 33).reshape(1)}, 4 << 33),
        ("Range", {"a": number(0), "b": number(1 << 31), "c": number(1)}, 8 << 31),
        ("OneHot", {"at": number(1).reshape(1), "depth": number(1 << 31), "v": reals(2)}, 4 << 31),
    ],
)
def test_large_results_are_not_computed_ahead(
    op: str, inputs: dict[str, np.ndarray], size: int
) -> None:
    one = model([node(op, " ".join(inputs), "big")], {"x": [1]}, {"big": None}, inputs)
    with pytest.raises(SpecError, match=f"tensor 'big': {size} bytes .* at most {MOST_FOLDED}"):
        graph_of(one)


def test_one_value_in_many_places_is_held_once() -> None:
    fill = node("ConstantOfShape", "to", "big")
    weights = {"to": number(1 << 27).reshape(1)}
    graph = graph_of(model([fill, node("Add", "x big", "y")], {"x": [1]}, {"y": None}, weights))
    assert graph.constants["big"].shape == (1 << 27,) and graph.constants["big"].strides == (0,)


def test_ranges_of_constants_are_computed() -> None:
    def ranged(dtype: str, *shape: int) -> onnx.ModelProto:
        numbers = zip("abc", (1, 9, 2), strict=True)
        weights = {name: np.full(shape, value, dtype) for name, value in numbers}
        nodes = [node("Range", "a b c", "r"), node("Cast", "r", "f", to=1),
                 node("Add", "x f", "y")]  # fmt: skip
        return model(nodes, {"x": [4]}, {"y": None}, weights)

    for dtype in ("int16", "int32", "int64", "float32"):
        assert graph_of(ranged(dtype)).constants["f"].tolist() == [1, 3, 5, 7]
    assert graph_of(ranged("int64", 1)).constants["f"].tolist() == [1, 3, 5, 7]
    with pytest.raises(SpecError, match=r"from \[1 1\] to"):
        graph_of(ranged("int64", 2))


def test_a_shape_that_depends_on_data_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"Unique of a.*how many elements differ depends on"):
        graph_of(model([node("Unique", "x", "a"), node("Cast", "a", "y", to=1)], {"x": [3]},
                       {"y": None}))  # fmt: skip


def damaged() -> dict[str, tuple[onnx.ModelProto, str]]:
    x, y = {"x": [1, 3, 8, 8]}, {"y": None}
    relu, huge = node("Relu", "x", "y"), model([node("Relu", "w", "y")], x, y, {"w": reals(2)})
    huge.graph.initializer[0].dims[0] = 1 << 40
    negative, part = model([relu], x, y, {"w": reals(2)}), model([relu], x, y, {"w": reals(8)})
    negative.graph.initializer[0].dims[0] = -1
    part.graph.initializer[0].raw_data = part.graph.initializer[0].raw_data[:-4]
    other = model([relu], x, y)
    other.graph.node[0].domain = "com.example"
    sub = model(
        [helper.make_node("If", ["x"], ["y"], then_branch=other.graph, else_branch=other.graph)],
        x,
        y,
    )
    nothing = model([relu], x, y)
    del nothing.opset_import[:]
    return {
        "cycle": (
            model([node("Add", "x b", "a"), node("Relu", "a", "b"), node("Relu", "b", "y")], x, y),
            "Add.* reads 'b', which nothing before it makes",
        ),
        "missing initialiser": (model([node("Conv", "x w", "y")], x, y), "reads 'w'"),
        "made twice": (model([relu, relu], x, y), "makes 'y' a second time"),
        "no such output": (model([node("Relu", "x", "z")], x, y), "nothing makes the output 'y'"),
        "no nodes": (model([], x, y), "no nodes or no outputs"),
        "no opset": (nothing, "names no version"),
        "other domain": (other, "com.example.Relu.*no such operator"),
        "subgraph": (sub, r"'if y'\): a condition of shape \[1, 3, 8, 8\]"),
        "absurd weights": (huge, r"tensor 'w': shape \[1099511627776\]"),
        "negative weights": (negative, r"tensor 'w': shape \[-1\]"),
        "part of the weights": (part, "tensor 'w'"),
        "bad arithmetic": (
            model(
                [node("Gather", "w at", "v"), node("Add", "x v", "y")],
                x,
                y,
                {"w": reals(2), "at": np.array(9, np.int64)},
            ),
            "Gather",
        ),
        "a name of a kilobyte": (model([node("Relu", "x" * 1024, "y")], x, y), "x{150}"),
    }


@pytest.mark.parametrize("name", damaged())
def test_damage_is_named(tmp_path: Path, name: str) -> None:
    broken, message = damaged()[name]
    with pytest.raises((SpecError, UnsupportedError), match=message) as caught:
        load(saved(tmp_path, broken))
    assert str(caught.value).startswith(str(tmp_path)) and len(str(caught.value)) < 900


@pytest.mark.parametrize("part", [0, 1, 40, 200])
def test_a_part_of_a_file_is_no_model(tmp_path: Path, part: int) -> None:
    path = saved(tmp_path, layer())
    path.write_bytes(path.read_bytes()[:part])
    with pytest.raises(SpecError, match=r"no ONNX model|which nothing before|nothing makes"):
        load(path, {"N": 1, "W": 8})


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nowhere.onnx: cannot be read: No such file"):
        load(tmp_path / "nowhere.onnx")
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        load(tmp_path)


def with_external(location: str, **told: object) -> onnx.ModelProto:
    one = model([node("Add", "x w", "y")], {"x": [4]}, {"y": None}, {"w": reals(4)})
    weights = one.graph.initializer[0]
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **told}.items():
        weights.external_data.add(key=key, value=str(value))
    return one


def test_external_data_is_read_on_request_from_the_models_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/w.bin").write_bytes(b"head" + reals(4).tobytes())
    path = saved(tmp_path, with_external("data/w.bin", offset=4, length=16))
    with pytest.raises(SpecError, match="'w' lies in another file; external data is read on req"):
        load(path)
    graph = load(path, external=True)
    assert (graph.constants["w"] == reals(4)).all()


@pytest.mark.parametrize(
    ("location", "told", "message"),
    [
        ("../secret", {}, "outside the model's folder"),
        ("/etc/passwd", {}, "outside the model's folder"),
        ("link", {}, "outside the model's folder"),
        ("nowhere", {}, "is no file"),
        ("w.bin", {"offset": -4}, "its offset is negative"),
        ("w.bin", {"offset": "x"}, "invalid literal"),
        ("w.bin", {"length": 99}, "bytes 0 to 99; 'w.bin' has 16"),
        ("w.bin", {"offset": 8}, "tensor 'w'"),
    ],
)
def test_hostile_external_data(tmp_path: Path, location: str, told: dict, message: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "secret").write_bytes(reals(4).tobytes())
    (home / "w.bin").write_bytes(reals(4).tobytes())
    (home / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(SpecError, match=message):
        load(saved(home, with_external(location, **told)), external=True)


def test_a_model_in_memory() -> None:
    one = layer()
    check_model(one, "mine")
    assert Counter(n.op for n in graph_of(one, {"N": 1, "W": 5}).nodes) == {"conv": 1, "relu": 1}
    assert MOST_BYTES >= 1 << 32
    assert numpy_helper.to_array(one.graph.initializer[0]).shape == (5, 3, 3, 3)


def test_attributes_are_in_the_words_of_graphs() -> None:
    nodes = [
        node("MaxPool", "x", "p", kernel_shape=[2, 3], strides=[2, 1], auto_pad="SAME_LOWER"),
        node("Reshape", "p shape", "s"),
        node("RNN", "s w r", "y", hidden_size=2, activations=["ThresholdedRelu"],
             activation_alpha=[0.5]),
    ]  # fmt: skip
    weights = {"shape": np.array([1, 4, 3]), "w": reals(1, 2, 3), "r": reals(1, 2, 2)}
    pool, _, rnn = graph_of(model(nodes, {"x": [1, 1, 7, 3]}, {"y": None}, weights)).nodes
    assert pool.attributes["pads"] == [1, 1, 0, 1] and "auto_pad" not in pool.attributes
    assert rnn.attributes["activations"] == [("thresholded_relu", 0.5)]
    gemm = model(
        [node("Gemm", "x w", "y", transB=1)], {"x": [3, 3]}, {"y": None}, {"w": reals(2, 3)}
    )
    assert dict(graph_of(gemm).nodes[0].attributes) == {"transpose_b": 1}
