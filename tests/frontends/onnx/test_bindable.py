"""Models of which data decides shapes: the error names what to bind, and binding it compiles."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polysci.errors import UnsupportedError
from polysci.frontends.onnx.importer import graph_of
from polysci.graph.operators.lower import SUPPORTED, lower
from tests.support.onnxmodels import node

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Ports = dict[str, tuple[int, Sequence[int]]]
SPREAD = [node("Range", "zero n one", "r"), node("Cast", "r", "f", to=F32), node("Mul", "f x", "y")]
NUMBERS = {"zero": 0, "one": 1}
X = {"x": (F32, [1])}


def whole(nodes: Sequence[onnx.NodeProto], inputs: Ports, weights: dict[str, Any]) -> Any:
    ports = [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()]
    constants = [numpy_helper.from_array(np.asarray(v), name) for name, v in weights.items()]
    results = [helper.make_tensor_value_info("y", F32, None)]
    graph = helper.make_graph(nodes, "small", ports, results, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def recurrence() -> onnx.NodeProto:
    words = ["z", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"]
    return helper.make_node("DynamicQuantizeLSTM", words, ["y"], domain="com.microsoft",
                            hidden_size=4)  # fmt: skip


def weights_of() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {
        "w": draw.integers(-99, 99, (1, 3, 16)).astype(np.int8),
        "r": draw.integers(-99, 99, (1, 4, 16)).astype(np.int8),
        **dict.fromkeys(("ws", "rs"), np.full(1, 0.01, np.float32)),
        **dict.fromkeys(("wz", "rz"), np.zeros(1, np.int8)),
    }


def loop(bound: bool, by_data: bool = False) -> Any:
    """Sums that are stacked; it goes on as long as they are small, or ``m`` times."""
    goes = node("Identity", "go", "on")
    if by_data:
        goes = node("Less", "next limit", "on")
    step = helper.make_graph(
        [node("Add", "s one", "next"), node("Identity", "next", "part"), goes], "step",
        [helper.make_tensor_value_info(n, kind, []) for n, kind in
         (("i", I64), ("go", BOOL), ("s", F32))],
        [helper.make_tensor_value_info(n, kind, []) for n, kind in
         (("on", BOOL), ("next", F32), ("part", F32))],
    )  # fmt: skip
    inputs: Ports = {"x": (F32, []), **({"m": (I64, [])} if bound else {})}
    nodes = [node("Loop", f"{'m' if bound else '-'} begins x", "last y", body=step)]
    weights = {"one": np.float32(1), "begins": True, "limit": np.float32(5)}
    return whole(nodes, inputs, weights)


CASES: dict[str, tuple[Any, Any, Sequence[int]]] = {
    "a range up to an input": (whole(SPREAD, {"n": (I64, []), **X}, NUMBERS), 5, [5]),
    "a range up to the greatest of a list": (
        whole([node("ReduceMax", "list", "n", keepdims=0), *SPREAD], {"list": (I64, [4]), **X},
              NUMBERS), [3, 6, 2, 1], [6],
    ),
    "a range up to the greatest of a matrix": (
        whole([node("ReduceMax", "words", "n", keepdims=0), *SPREAD],
              {"words": (I64, [4, 4]), **X}, NUMBERS), 7, [7],
    ),
    "a recurrence of unknown shape": (
        whole([node("Reshape", "x shape", "z"), recurrence()],
              {"x": (F32, [30]), "shape": (I64, [3])}, weights_of()), [5, 2, 3], [5, 1, 2, 4],
    ),
    "a loop that stacks": (loop(True), 4, [4]),
    "a loop that stacks as long as data says": (loop(True, by_data=True), 4, [4]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_the_message_says_works(case: str) -> None:
    model, value, shape = CASES[case]
    with pytest.raises(UnsupportedError) as caught:
        graph_of(model, supported=SUPPORTED)
    lines = [line for line in str(caught.value).splitlines() if " x " in line]
    options = [re.findall(r"--value (\w+)=V", line) for line in lines]
    assert all(options) and len({*map(tuple, options)}) == 1, str(caught.value)
    (name,) = options[0]
    program = lower(graph_of(model, None, {name: value}, supported=SUPPORTED))
    made = program.outputs[program.titles.index("y")]
    assert [*program.values[made].shape] == shape


def test_a_tensor_of_unknown_shape_is_named() -> None:
    model, *_ = CASES["a recurrence of unknown shape"]
    with pytest.raises(UnsupportedError, match=r"LSTM y'\): the shape of its input 'z' is not kno"):
        graph_of(model, supported=SUPPORTED)


def test_a_loop_without_a_bound() -> None:
    """No input has one: an option must."""
    with pytest.raises(UnsupportedError, match=r"as in --most y=1000$"):
        graph_of(loop(False, by_data=True), supported=SUPPORTED)
