"""Inputs that are made up: what a graph does with an input says which numbers it may hold."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polysci.cli import main
from polysci.errors import SpecError
from polysci.frontends.onnx import reference
from polysci.graph.operators.lower import lower
from polysci.network.build import signature_of
from polysci.network.prepare import graph_of
from polysci.network.runner import TensorPort, inputs_of, load_inputs
from tests.support.compiling import FAST, saved
from tests.support.networks import network_of
from tests.support.onnxmodels import node, reals

F32, I64, I32, U8, BOOL = (
    TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.UINT8, TensorProto.BOOL,
)  # fmt: skip
Inputs = Mapping[str, tuple[int, Sequence[int]]]
ONE, MANY, LOW = np.array(1, np.float32), np.arange(8), np.array(-1e4, np.float32)
NEVER, ZERO = np.array(-np.inf, np.float32), np.array(0)
X = {"x": (F32, [1, 8])}


def whole_model(
    nodes: Sequence[onnx.NodeProto], inputs: Inputs, weights: Mapping[str, Any], output: str = "y"
) -> onnx.ModelProto:
    ports = [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()]
    values = [numpy_helper.from_array(np.asarray(v), name) for name, v in weights.items()]
    results = [helper.make_tensor_value_info(output, F32, None)]
    graph = helper.make_graph(nodes, "small", ports, results, values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def ports_of(model: onnx.ModelProto) -> list[TensorPort]:
    program = lower(graph_of(model))
    values, ranges = program.values, program.ranges
    return [
        TensorPort(name, values[name].shape, values[name].dtype, range=ranges.get(name))
        for name in program.inputs
    ]


def bert(length: int = 8, words: int = 100) -> onnx.ModelProto:
    """Words, segments and places of a text, and a mask that hides scores."""
    nodes = [
        node("Gather", "words input_ids", "w"), node("Gather", "kinds token_type_ids", "t"),
        node("Gather", "places position_ids", "p"), node("Add", "w t", "wt"),
        node("Add", "wt p", "e"), node("Transpose", "e", "k", perm=[0, 2, 1]),
        node("MatMul", "e k", "s"), node("Unsqueeze", "attention_mask axis", "wide"),
        node("Cast", "wide", "real", to=F32), node("Sub", "one real", "hidden"),
        node("Mul", "hidden low", "far"), node("Add", "s far", "z"), node("Softmax", "z", "a"),
        node("MatMul", "a e", "y"),
    ]  # fmt: skip
    text = dict.fromkeys(
        ("input_ids", "token_type_ids", "position_ids", "attention_mask"), (I64, [1, length])
    )
    weights = {
        "words": reals(words, 4), "kinds": reals(2, 4), "places": reals(length, 4, seed=1),
        "axis": np.array([1]), "one": ONE, "low": LOW,
    }  # fmt: skip
    return whole_model(nodes, text, weights)


@pytest.mark.parametrize("seed", range(3))
def test_a_text(seed: int) -> None:
    made = inputs_of(ports_of(bert()), seed)
    assert made["input_ids"].max() > 3 and 0 <= made["input_ids"].min() <= 99
    assert {*made["token_type_ids"].flat} <= {0, 1}
    assert made["position_ids"].tolist() == [[*range(8)]]
    assert made["attention_mask"].tolist() == [[1] * 8]
    again = inputs_of(ports_of(bert()), seed)
    assert all(np.array_equal(made[name], again[name]) for name in made)
    assert not np.array_equal(made["input_ids"], inputs_of(ports_of(bert()), seed + 1)["input_ids"])


def where(*before: onnx.NodeProto, keeps: str, kind: int, **weights: Any) -> onnx.ModelProto:
    """x, or minus infinity where the condition ``c`` says so."""
    values = "c x low" if keeps == "then" else "c low x"
    nodes = [*before, node("Where", values, "y")]
    return whole_model(nodes, {"m": (kind, [1, 8]), **X}, {"low": NEVER, **weights})


CASES: dict[str, tuple[onnx.ModelProto, str, Any]] = {
    "what is not equal to 0 stays": (
        where(node("Equal", "m zero", "c"), keeps="else", kind=I64, zero=ZERO), "m", 1,
    ),
    "what is equal to 1 stays": (
        where(node("Equal", "m one", "c"), keeps="then", kind=I64, one=np.array(1)), "m", 1,
    ),
    "what is above a half stays": (
        where(node("Greater", "m half", "c"), keeps="then", kind=F32, half=np.float32(0.5)),
        "m", lambda x: (x > 0.5).all(),
    ),
    "true hides": (where(node("Identity", "m", "c"), keeps="else", kind=BOOL), "m", False),
    "true stays": (where(node("Identity", "m", "c"), keeps="then", kind=BOOL), "m", True),
    "a real number as a condition": (
        where(node("Cast", "m", "b", to=BOOL), node("Not", "b", "c"), keeps="else", kind=F32),
        "m", lambda x: (x != 0).all(),
    ),
    "a mask turned round before it is reshaped": (
        whole_model(
            [
                node("Cast", "m", "real", to=F32), node("Sub", "one real", "hidden"),
                node("Unsqueeze", "hidden axis", "wide"), node("Mul", "wide low", "far"),
                node("Add", "x far", "y"),
            ],
            {"m": (I64, [4, 8]), "x": (F32, [4, 8, 8])},
            {"one": ONE, "low": LOW, "axis": np.array([1])},
        ), "m", 1,
    ),
    "places counted backwards": (
        whole_model(
            [
                node("Sub", "last m", "p"), node("Unsqueeze", "p axis", "wide"),
                node("Gather", "t wide", "y"),
            ],
            {"m": (I64, [90])}, {"last": 8, "axis": np.array([1]), "t": reals(9)},
        ), "m", lambda x: {*x} == {*range(9)},
    ),
    "lengths that hide what is behind": (
        whole_model(
            [node("Less", "many m", "c"), node("Where", "c x low", "y")],
            {"m": (I64, [2, 1]), "x": (F32, [2, 8])}, {"many": MANY, "low": NEVER},
        ), "m", 8,
    ),
    "lengths that are factors": (
        whole_model(
            [node("Less", "many m", "c"), node("Cast", "c", "f", to=F32), node("Mul", "x f", "y")],
            {"m": (I32, [2, 1]), "x": (F32, [2, 8])}, {"many": MANY.astype(np.int32)},
        ), "m", 8,
    ),
    "lengths of a recurrence": (
        whole_model(
            [node("LSTM", "x w r - m", "y", hidden_size=4)],
            {"x": (F32, [7, 2, 3]), "m": (I32, [2])},
            {"w": reals(1, 16, 3), "r": reals(1, 16, 4)},
        ), "m", 7,
    ),
    "lengths of what is reversed": (
        whole_model(
            [node("ReverseSequence", "x m", "y")], {"x": (F32, [7, 2, 3]), "m": (I64, [2])}, {}
        ), "m", 7,
    ),
    "classes": (
        whole_model(
            [node("OneHot", "m depth values", "y")], {"m": (I64, [40])},
            {"depth": 5, "values": np.array([0, 1], np.float32)},
        ), "m", lambda x: {*x} == {0, 1, 2, 3, 4},
    ),
    "places in two axes": (
        whole_model([node("GatherND", "x m", "y")], {"x": (F32, [7, 2]), "m": (I64, [90, 2])}, {}),
        "m", lambda x: {*x.flat} == {0, 1},
    ),
    "places that are written": (
        whole_model(
            [node("ScatterND", "x m u", "y")],
            {"x": (F32, [7, 2]), "m": (I64, [90, 1]), "u": (F32, [90, 2])}, {},
        ), "m", lambda x: {*x.flat} == {*range(7)},
    ),
    "places beyond an offset": (
        whole_model(
            [node("Add", "m two", "p"), node("Gather", "t p", "y")], {"m": (I64, [90])},
            {"two": 2, "t": reals(9)},
        ), "m", lambda x: x.max() == 6 and x.min() >= 0,
    ),
    "places by two parts": (
        whole_model(
            [node("Add", "m n", "p"), node("Gather", "t p", "y")],
            {"m": (I64, [90]), "n": (I64, [90])}, {"t": reals(9)},
        ), "m", lambda x: x.min() >= 0 and x.max() <= 4,
    ),
    "places as real numbers": (
        whole_model(
            [node("Cast", "m", "p", to=I64), node("Gather", "t p", "y")], {"m": (F32, [90])},
            {"t": reals(9)},
        ), "m", lambda x: {*x} == {*range(9)},
    ),
    "words, of which one is padding": (
        whole_model(
            [
                node("Gather", "t m", "g"), node("ReduceMean", "g", "s", axes=[2], keepdims=0),
                node("Equal", "m pad", "c"), node("Where", "c low s", "y"),
            ],
            {"m": (I64, [1, 90])}, {"t": reals(9, 4), "pad": 1, "low": NEVER},
        ), "m", lambda x: {*x.flat} == {0, *range(2, 9)},
    ),
    "a divisor": (
        whole_model([node("Div", "x m", "y")], {"x": (F32, [90]), "m": (F32, [90])}, {}),
        "m", lambda x: x.min() >= 0.5,
    ),
    "a whole divisor": (
        whole_model(
            [node("Div", "n m", "q"), node("Cast", "q", "y", to=F32)],
            {"n": (I64, [90]), "m": (I64, [90])}, {},
        ), "m", lambda x: x.min() == 1,
    ),
    "an image": (
        whole_model([node("Cast", "m", "y", to=F32)], {"m": (U8, [900])}, {}),
        "m", lambda x: x.max() > 250,
    ),
    "what is compared is no mask": (
        whole_model(
            [node("Greater", "m zero", "c"), node("Where", "c m zero", "y")], {"m": (F32, [90])},
            {"zero": np.float32(0)},
        ), "m", lambda x: x.min() < 0 < x.max(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_inputs_are_what_a_graph_can_compute_with(case: str) -> None:
    model, name, wanted = CASES[case]
    made = inputs_of(ports_of(model))[name]
    if callable(wanted):
        assert wanted(made), made
    else:
        assert (made == wanted).all(), made


@pytest.mark.parametrize("case", CASES)
def test_results_are_finite(case: str) -> None:
    model = CASES[case][0]
    graph = graph_of(model)
    results = reference.run_outputs(graph, inputs_of(ports_of(model)), ["y"])
    assert np.isfinite(results["y"]).all()


def test_steps_of_a_loop() -> None:
    """No more of them than the loop may take, and not thousands."""
    step = helper.make_graph(
        [node("Identity", "go", "on"), node("Add", "s one", "next")], "step",
        [helper.make_tensor_value_info(n, kind, []) for n, kind in
         (("i", I64), ("go", BOOL), ("s", F32))],
        [helper.make_tensor_value_info(n, kind, []) for n, kind in (("on", BOOL), ("next", F32))],
    )  # fmt: skip
    nodes = [node("Loop", "m - x", "y", body=step)]
    model = whole_model(nodes, {"m": (I64, []), "x": (F32, [])}, {"one": ONE})
    assert 1 <= int(inputs_of(ports_of(model))["m"]) <= 4


@pytest.mark.exhaustive
def test_ranges_are_kept_with_a_network() -> None:
    told = json.loads(json.dumps(signature_of(network_of(graph_of(bert())).code)))
    named = {port["name"] for port in told["inputs"] if port["range"]}
    assert named == {port.name for port in ports_of(bert())}


# Files of arrays


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"input_ids": None}, "lacks 'input_ids'; expected arrays"),
        ({"more": np.zeros(1)}, "has no use for 'more'; expected arrays"),
        ({"input_ids": np.zeros((1, 8), np.int32)}, "input_ids: expected dtype int64, got int32"),
        ({"input_ids": np.zeros((1, 9), np.int64)}, r"input_ids: expected shape \(1, 8\), got \(1"),
    ],
)
def test_a_file_that_does_not_fit(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    ports = ports_of(bert())
    arrays = {n: x for n, x in {**inputs_of(ports), **change}.items() if x is not None}
    np.savez(tmp_path / "inputs.npz", **arrays)
    with pytest.raises(SpecError, match=rf"inputs.npz': {told}"):
        load_inputs(tmp_path / "inputs.npz", ports)


@pytest.mark.parametrize("text", [b"", b"PK\x03\x04 and no more", b"\x80\x04\x95 a pickle"])
def test_a_file_that_is_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "inputs.npz").write_bytes(text)
    with pytest.raises(SpecError, match=r"expected an \.npz file of arrays"):
        load_inputs(tmp_path / "inputs.npz", ports_of(bert()))
    np.save(tmp_path / "array.npy", np.zeros((1, 8), np.int64))
    with pytest.raises(SpecError, match=r"expected an \.npz file of arrays, not one array"):
        load_inputs(tmp_path / "array.npy", ports_of(bert()))
    with pytest.raises(SpecError, match="nowhere"):
        load_inputs(tmp_path / "nowhere.npz", ports_of(bert()))


def test_arrays_without_names_are_the_inputs_in_order(tmp_path: Path) -> None:
    ports = ports_of(bert())
    made = inputs_of(ports, 5)
    np.savez(tmp_path / "inputs.npz", *made.values())
    read = load_inputs(tmp_path / "inputs.npz", ports)
    assert all(np.array_equal(read[name], made[name]) for name in made)


@pytest.mark.exhaustive
def test_runs_on_a_file_or_on_other_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(bert(), tmp_path / "bert.onnx")
    made = inputs_of(ports_of(bert()), 3)
    made["attention_mask"][0, 4:] = 0
    np.savez(tmp_path / "inputs.npz", **made)
    words = ["compile", str(path), *FAST, "--check"]
    rows = []
    for more in ([], ["--seed", "7"], ["--input", str(tmp_path / "inputs.npz")]):
        assert main([*words, "--json", *more]) == 0
        rows.append(json.loads(capsys.readouterr().out.splitlines()[-2]))
    assert rows[0]["largest"] != rows[1]["largest"] != rows[2]["largest"]
    for more, told in (
        (["--seed", "-1"], "--seed -1: expected a whole number from 0"),
        (["--seed", "1", "--input", "x.npz"], "leave out one"),
        (["--input", str(path)], "expected an .npz file of arrays"),
    ):
        assert main([*words, *more]) == 2
        assert told in capsys.readouterr().err
    for option in (["--seed", "1"], ["--input", "x.npz"]):
        assert main(["compile", str(path), *FAST, *option]) == 2
        assert f"{option[0]}: of a run" in capsys.readouterr().err


def test_a_text_beside_onnx_runtime(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    path = saved(bert(), tmp_path / "bert.onnx")
    words = [*FAST, "--compare", "onnxruntime", "--rounds", "9", "--json"]
    assert main(["compile", str(path), *words]) == 0
    whole = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert whole["failures"] == {} and 0 <= whole["errors"]["onnxruntime"] < 1e-5
    assert whole["non_finite"]["onnxruntime"] == {"alike": 0, "apart": 0}
