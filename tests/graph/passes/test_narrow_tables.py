"""Rows of tables of 8 bits are gathered as numbers, and dequantised where they are read."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from polysci.frontends.onnx import reference
from polysci.graph.graph import Graph
from polysci.graph.passes.narrow_tables import keep_narrow_tables
from polysci.graph.passes.table import simplify
from tests.support.networks import network_of, read
from tests.support.onnxmodels import node, reals

Array = np.ndarray
ROWS, WIDTH = 20, 32
NUMBERS = np.random.default_rng(0).integers(0, 256, (ROWS, WIDTH)).astype(np.uint8)
PLACES = np.array([[3, -1, 0], [19, 7, 7]], np.int64)


def steps(*shape: int) -> Array:
    return np.abs(reals(*shape, seed=1)) + np.float32(0.1)


# Words of DequantizeLinear, of Gather, its scale and zero.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Array, Array]] = {
    "one scale": ({}, {}, np.float32(0.25), np.uint8(120)),
    "a scale a column": ({"axis": 1}, {}, steps(WIDTH), np.arange(WIDTH, dtype=np.uint8)),
    "a scale a row": ({"axis": 0}, {}, steps(ROWS), np.arange(ROWS, dtype=np.uint8)),
    "blocks of a row": (
        {"axis": 1, "block_size": 16}, {}, steps(ROWS, 2), np.full((ROWS, 2), 9, np.uint8)
    ),
    "columns of one scale": ({}, {"axis": 1}, np.float32(0.25), np.uint8(120)),
    "columns of a scale a column": ({"axis": 1}, {"axis": 1}, steps(WIDTH),
                                    np.zeros(WIDTH, np.uint8)),
}  # fmt: skip


def graph_of(words: dict[str, Any], gather: dict[str, Any], scale: Array, zero: Array) -> Graph:
    nodes = [
        node("DequantizeLinear", "w s z", "real", **words), node("Gather", "real i", "y", **gather)
    ]  # fmt: skip
    info = helper.make_tensor_value_info
    weights = {"w": NUMBERS, "s": np.asarray(scale), "z": np.asarray(zero)}
    graph = helper.make_graph(
        nodes, "table", [info("i", TensorProto.INT64, PLACES.shape)],
        [info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    return read(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_rows_are_dequantised_late(name: str) -> None:
    plain = graph_of(*CASES[name])
    graph = keep_narrow_tables(plain)
    assert graph.constants[graph.nodes[0].inputs[0]].dtype == np.uint8
    expected = reference.run(plain, {"i": PLACES})["y"]
    np.testing.assert_allclose(reference.run(graph, {"i": PLACES})["y"], expected, rtol=2**-23)
    network = network_of(graph)
    np.testing.assert_array_equal(network({"i": PLACES})["y"], expected)
    assert len(network.prepared.program.stages) == 1  # gathered in the same loops


def test_numbers_of_rows_that_are_quantised_again_are_handed_on() -> None:
    """As quantised models have it: QuantizeLinear by the scale of the table rounds nothing."""
    parameters = {"s": np.float32(0.25), "z": np.uint8(120)}
    nodes = [
        node("DequantizeLinear", "w s z", "real"), node("Gather", "real i", "rows"),
        node("QuantizeLinear", "rows s z", "q"), node("DequantizeLinear", "q s z", "y"),
    ]  # fmt: skip
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "table", [info("i", TensorProto.INT64, PLACES.shape)],
        [info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name)
         for name, value in {"w": NUMBERS, **parameters}.items()],
    )  # fmt: skip
    plain = read(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    narrow = simplify(plain)
    assert [it.op for it in narrow.nodes] == ["gather", "dequantize"]
    np.testing.assert_array_equal(
        reference.run(narrow, {"i": PLACES})["y"], reference.run(plain, {"i": PLACES})["y"]
    )
