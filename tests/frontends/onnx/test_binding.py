"""Inputs get sizes and values: by name, by place, and with a line for each that lacks one."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from polysci.cli import main
from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.onnx.importer import graph_of
from polysci.network.compiled import compile_network
from tests.support.compiling import FAST, saved
from tests.support.flags import QUICK
from tests.support.onnxmodels import model, node, reals


def scaled(shape: list[Any], kind: int = TensorProto.FLOAT, by: Any = ()) -> onnx.ModelProto:
    """``x * s`` where s has another type."""
    nodes = [node("Cast", "s", "f", to=1), node("Mul", "x f", "y")]
    one = model(nodes, {"x": shape}, {"y": None})
    one.graph.input.append(helper.make_tensor_value_info("s", kind, by))
    return one


@pytest.mark.parametrize(("shape", "dims"), [
    ([-1, 3], {"x.0": 2}), ([None, 3], {"x.0": 2}), (["n", "n"], {"n": 2}),
    (["n", "n"], {"n": 3, "x.0": 2}), (["n", 3], {"x.0": 2}),
])  # fmt: skip
def test_dimensions_without_a_size(shape: list[Any], dims: dict[str, int]) -> None:
    one = model([node("Relu", "x", "y")], {"x": shape}, {"y": None})
    assert graph_of(one, dims).outputs[0].shape[0] == 2


def test_every_free_dimension_has_a_line() -> None:
    one = model([node("Add", "x z", "y")], {"x": ["n", -1], "z": ["n", 3]}, {"y": None})
    with pytest.raises(SpecError) as caught:
        graph_of(one)
    assert str(caught.value).splitlines() == [
        "model: input 'x': dimension 0 ('n') is free; bind it, as in --dim n=1",
        "  input 'x': dimension 1 ('x.1') is free; bind it, as in --dim x.1=1",
        "  all at once: --dim n=1 --dim x.1=1",
    ]


@pytest.mark.parametrize(("shape", "kind", "options"), [
    (["n", 3, "h w", -1], TensorProto.FLOAT, "--dim n=1 --dim 'h w=224' --dim x.3=224"),
    (["n", "words"], TensorProto.INT64, "--dim n=1 --dim words=128"),
    (["n", "samples"], TensorProto.FLOAT16, "--dim n=1 --dim samples=1"),
    ([2, "n", "m"], TensorProto.FLOAT, "--dim n=1 --dim m=1"),
    (["?", 3, "?", "?"], TensorProto.FLOAT, "--dim x.0=1 --dim x.2=224 --dim x.3=224"),
    (["n", "n"], TensorProto.INT64, "--dim x.0=1 --dim x.1=128"),
])  # fmt: skip
def test_sizes_that_examples_give(shape: list[Any], kind: int, options: str) -> None:
    """The sides of an image, the length of a text."""
    one = model([node("Relu", "x", "y")], {"x": shape}, {"y": None})
    one.graph.input[0].type.tensor_type.elem_type = kind
    with pytest.raises(SpecError) as caught:
        graph_of(one)
    assert str(caught.value).splitlines()[-1] == f"  all at once: {options}"


@pytest.mark.parametrize(("kind", "by", "value", "want"), [
    (TensorProto.INT64, [], 3, 3.0), (TensorProto.INT64, [1], 3, 3.0),
    (TensorProto.FLOAT, [3], [1, 2, 3], [1.0, 2.0, 3.0]), (TensorProto.BOOL, [], True, 1.0),
    (TensorProto.INT32, ["k"], np.array([4]), [4.0]), (TensorProto.FLOAT, [1, 3], [1, 2, 3],
                                                      [[1.0, 2.0, 3.0]]),
])  # fmt: skip
def test_values_of_inputs(kind: int, by: list[Any], value: Any, want: Any) -> None:
    graph = graph_of(scaled([2, 3], kind, by), values={"s": value})
    assert [tensor.name for tensor in graph.inputs] == ["x"]
    assert (
        graph.constants["f"].tolist() == np.broadcast_to(want, graph.constants["f"].shape).tolist()
    )


@pytest.mark.parametrize(("kind", "by", "value", "message"), [
    (TensorProto.INT64, [], 1.5, "value of 's': 1.5 is no int64"),
    (TensorProto.UINT8, [], -1, "value of 's': -1 is no uint8"),
    (TensorProto.INT64, [2], [1, 2, 3], r"3 numbers for the shape \[2\]"),
    (TensorProto.INT64, ["k", 2], 1, r"its shape \(\) has not the rank 2"),
    (TensorProto.INT64, [], "fast", "'fast' is no number"),
])  # fmt: skip
def test_values_that_do_not_fit(kind: int, by: list[Any], value: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        graph_of(scaled([2, 3], kind, by), values={"s": value})


def test_a_value_of_no_input() -> None:
    with pytest.raises(SpecError, match="value of 't': no input has that name; expected one of "):
        graph_of(scaled([2, 3]), values={"t": 1})


def test_a_foreign_opset_that_no_node_uses() -> None:
    one = model([node("Relu", "x", "y")], {"x": [2]}, {"y": None})
    one.opset_import.append(helper.make_opsetid("com.example", 1))
    assert [n.op for n in graph_of(one).nodes] == ["relu"]
    one.graph.node[0].domain = "com.example"
    with pytest.raises(UnsupportedError, match=r"1 x com.example.Relu \('com.example.Relu Relu of "
                       r"y'\): polysci has no such operator"):  # fmt: skip
        graph_of(one)


def test_several_versions_of_the_operators() -> None:
    one = model([node("Relu", "x", "y")], {"x": [2]}, {"y": None})
    one.opset_import.append(helper.make_opsetid("ai.onnx", 17))
    assert graph_of(one).nodes
    one.opset_import[1].version = 18
    with pytest.raises(SpecError, match=r"several versions of the operators: \[17, 18\]"):
        graph_of(one)


@pytest.mark.parametrize("opset", [0, 99])
def test_an_unknown_opset(opset: int) -> None:
    one = model([node("Relu", "x", "y")], {"x": [2]}, {"y": None}, opset=opset)
    with pytest.raises(UnsupportedError, match=f"opset {opset} of the operators; expected 1 to"):
        graph_of(one)


def test_the_command_line_binds(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(scaled([-1, 3], TensorProto.INT64), tmp_path / "m.onnx")
    words = ["compile", str(path), *FAST, "--explain", "--dim", "x.0=2"]
    assert main([*words, "--value", "s=3"]) == 0
    capsys.readouterr()
    assert main([*words, "--value", "s=1.5"]) == 2
    assert "value of 's': 1.5 is no int64" in capsys.readouterr().err
    assert main([*words, "--value", "s=1", "--value", "s=2"]) == 2
    assert "--value s: given more than once" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*words, "--value", "s"])
    assert "expected NAME=V of numbers, as in rate=16000" in capsys.readouterr().err


def test_a_model_with_free_dimensions_is_explained(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(scaled([-1, 3], TensorProto.FLOAT, [3]), tmp_path / "m.onnx")
    words = ["--isa", "portable", "--dim", "x.0=2", "--value", "s=1,-2.5,3"]
    assert main(["explain", str(path), *words]) == 0
    assert "Mul" in capsys.readouterr().out
    assert main(["explain", "mb1ic16ih8oc16kh3ph1", *words]) == 2
    assert "x.0: bound in a whole model (MODEL.onnx), not in layers" in capsys.readouterr().err


def test_from_python() -> None:
    network = compile_network(scaled([2, 3], TensorProto.INT64, [1]), "estimate", isa="portable",
                              values={"s": 3}, flags=QUICK)  # fmt: skip
    x = reals(2, 3)
    np.testing.assert_allclose(network(x), 3 * x, rtol=1e-6)
    with pytest.raises(TypeError, match="values"):
        compile_network(scaled([2, 3]), values=[1])  # type: ignore[arg-type]
