"""Slow functions of one number of 8 bits become tables, which hold what they compute."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polysci.frontends.onnx import reference
from polysci.graph.graph import ELEMENTS, Graph
from polysci.graph.passes.byte_tables import make_byte_tables
from tests.support.networks import network_of, read
from tests.support.onnxmodels import node, reals

SHAPE = (4, 300)
GELU = (
    node("Div", "r root", "d"), node("Erf", "d", "e"), node("QuantizeLinear", "e es ez", "eq"),
    node("DequantizeLinear", "eq es ez", "er"), node("Add", "er one", "f"),
    node("Mul", "r f", "g"), node("Mul", "half g", "h"),
)  # fmt: skip
CASES = {  # nodes from r to h, operators of whose results no table is made
    "gelu": (GELU, ["quantize", ELEMENTS, "dequantize"]),
    "quick": ((node("Relu", "r", "h"),), ["quantize", "dequantize", "relu", "quantize"]),
    "with another tensor": (
        (node("Tanh", "r", "t"), node("Mul", "t x", "h")),
        ["quantize", "dequantize", "tanh", "mul", "quantize"],
    ),
    "a constant a column": (
        (node("Tanh", "r", "t"), node("Mul", "t many", "h")),
        ["quantize", "dequantize", "tanh", "mul", "quantize"],
    ),
}


def graph_of(nodes: tuple[onnx.NodeProto, ...], dtype: type, shape: tuple[int, ...]) -> Graph:
    weights = {
        "s": np.float32(0.03), "z": dtype(17), "es": np.float32(0.0078), "ez": dtype(3),
        "root": np.float32(np.sqrt(2)), "one": np.float32(1), "half": np.float32(0.5),
        "many": reals(shape[-1]),
    }  # fmt: skip
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "r"), *nodes,
         node("QuantizeLinear", "h s z", "p"), node("DequantizeLinear", "p s z", "y")],
        "tables", [info("x", TensorProto.FLOAT, shape)], [info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )  # fmt: skip
    return read(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


@pytest.mark.parametrize("name", CASES)
def test_where_tables_are_made(name: str) -> None:
    nodes, left = CASES[name]
    graph = make_byte_tables(graph_of(nodes, np.uint8, SHAPE))
    assert [it.op for it in graph.nodes if it.op not in ("erf", "add")] == (
        left if name == "gelu" else [*left, "dequantize"]
    )


def test_a_small_tensor_gets_none() -> None:
    graph = graph_of(GELU, np.uint8, (3, 5))
    assert make_byte_tables(graph) is graph


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_a_table_holds_the_function(dtype: type) -> None:
    graph = graph_of(GELU, dtype, SHAPE)
    steps = np.arange(256) - 17 if dtype is np.uint8 else np.arange(-128, 128) - 17
    x = np.resize(steps * 0.03, SHAPE).astype(np.float32)  # every number of 8 bits
    expected = reference.run(graph, {"x": x})["y"]
    tabled = make_byte_tables(graph)
    assert ELEMENTS in [it.op for it in tabled.nodes]
    assert not {"erf", "mul"} & {it.op for it in tabled.nodes}
    np.testing.assert_array_equal(network_of(tabled)(x), expected.astype(np.float32))
