"""Quantised numbers that are only moved and scaled stay as they are, bit for bit."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polysci.frontends.onnx import reference
from polysci.graph.graph import Graph
from polysci.graph.passes.copies import without_copies
from polysci.graph.passes.idle_quantisations import remove_idle_quantisations
from tests.support.networks import read
from tests.support.onnxmodels import node, reals


def graph_of(nodes: list[onnx.NodeProto]) -> Graph:
    """From x through 8 bits ``q``, which are real in ``r``, and nodes to 8 bits ``p`` of y."""
    weights = {
        "s": np.float32(0.1), "z": np.uint8(120), "other": np.uint8(121),
        "half": np.float32(0.5), "less": np.float32(0.05), "many": np.float32([[[0.5]] * 3] * 2),
        "shape": np.array([3, 8]), "t": np.float32(0.099),
    }  # fmt: skip
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "r"), *nodes,
         node("DequantizeLinear", "p s z", "y")],
        "idle", [info("x", TensorProto.FLOAT, (2, 3, 4))], [info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )  # fmt: skip
    return read(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


CASES = {  # nodes, operators that are left
    "moved": (
        [node("Transpose", "r", "a", perm=[1, 0, 2]), node("QuantizeLinear", "a s z", "b"),
         node("DequantizeLinear", "b s z", "c"), node("Reshape", "c shape", "d"),
         node("QuantizeLinear", "d s z", "p")], ["quantize", "transpose", "reshape"],
    ),
    "scaled with its scale": (
        [node("Mul", "half r", "a"), node("QuantizeLinear", "a less z", "p")], ["quantize"],
    ),
    "divided": (
        [node("Div", "r half", "a"), node("Mul", "a half", "b"), node("Div", "b half", "c"),
         node("Mul", "c half", "d"), node("QuantizeLinear", "d s z", "p")], ["quantize"],
    ),
    "of another zero": (
        [node("QuantizeLinear", "r s other", "p")], ["quantize", "dequantize", "quantize"],
    ),
    "of another scale": (
        [node("QuantizeLinear", "r t z", "p")], ["quantize", "dequantize", "quantize"],
    ),
    "scaled by several": (
        [node("Mul", "r many", "a"), node("QuantizeLinear", "a less z", "p")],
        ["quantize", "dequantize", "mul", "quantize"],
    ),
    "the divisor of a number": (
        [node("Div", "half r", "a"), node("QuantizeLinear", "a less z", "p")],
        ["quantize", "dequantize", "div", "quantize"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_numbers_stay(name: str) -> None:
    nodes, left = CASES[name]
    graph = graph_of(nodes)
    short = without_copies(remove_idle_quantisations(graph))
    assert [it.op for it in short.nodes] == [*left, "dequantize"]
    inputs = {"x": reals(2, 3, 4) * 12}
    with np.errstate(all="ignore"):
        before, after = (reference.run(it, inputs)["y"] for it in (graph, short))
    np.testing.assert_array_equal(before, after)
