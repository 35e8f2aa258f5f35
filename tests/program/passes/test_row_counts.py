"""As how many rows tensors count: of images, tokens and heads, one behind the other."""

from typing import Any

import pytest

from polysci.graph.passes.table import simplify
from polysci.network.prepare import prepare
from polysci.program.passes.operands import Rows, RowWindow, rows_read
from polysci.program.passes.row_counts import count_rows
from polysci.target.host import detect
from tests.support.networks import read
from tests.support.onnxmodels import model, node, reals


def test_ways_to_count() -> None:
    """The slowest axis, and more of them while they run on in memory."""
    shape = (2, 1, 3, 5)
    assert [its.axes for its in Rows.every(shape, (15, 15, 5, 1))] == [(0,), (0, 2), (0, 2, 3)]
    assert [its.axes for its in Rows.every(shape, (5, 5, 10, 1))] == [(2,), (2, 0), (2, 0, 3)]
    assert [its.axes for its in Rows.every(shape, (20, 20, 5, 1))] == [(0,)]
    rows = Rows.of(shape, (15, 15, 5, 1), 6)
    assert rows == Rows(shape, (0, 2))
    assert (rows.height, rows.steps, rows.iterators) == (6, (3, 1), ("i0", "i2"))
    assert Rows.of(shape, (15, 15, 5, 1), 5) is None


IMAGE = {"w": reals(24, 8, 1, 1, seed=1), "v": reals(8, 24, 3, 3, seed=2)}
CONVOLUTIONS = [
    node("Conv", "x w", "a"),
    node("Gelu", "a", "g"),
    node("Conv", "g v", "b", pads=[1, 1, 1, 1], strides=[2, 2]),
    node("Conv", "b w", "y"),
]
HEADS = [
    node("MatMul", "x k", "s"),
    node("Add", "s mask", "m"),
    node("Softmax", "m", "a", axis=-1),
    node("MatMul", "a v", "y"),
]


@pytest.mark.parametrize(
    ("nodes", "inputs", "weights", "expected"),
    [
        (CONVOLUTIONS, {"x": [3, 8, 12, 6]}, IMAGE, {"a": 36, "g": 36, "b": 18}),
        (CONVOLUTIONS, {"x": [3, 8, 11, 6]}, IMAGE, {"a": 33, "g": 33, "b": 3}),
        (
            [node("MatMul", "x u", "a"), node("Tanh", "a", "y")], {"x": [3, 5, 8]},
            {"u": reals(8, 6)}, {"a": 15, "y": 15},
        ),
        (
            HEADS, {"x": [2, 3, 7, 4], "k": [2, 3, 4, 7], "v": [2, 3, 7, 4]},
            {"mask": reals(7, 7)},
            {"s": 42, "m": 42, "y": 42},
        ),
    ],
)  # fmt: skip
def test_counts(
    nodes: list[Any],
    inputs: dict[str, list[int]],
    weights: dict[str, Any],
    expected: dict[str, int],
) -> None:
    """Layers count what they make row by row; loops count what they read, as far as it runs on."""
    graph = simplify(read(model(nodes, inputs, {"y": None}, weights)))
    counts = count_rows(prepare(graph, target=detect("portable")).placed).row_counts
    assert {name: counts[name] for name in expected} == expected


def test_windows_run_on_through_images() -> None:
    """Rows of an image that a stride divides; what is read beyond its border is the next one's.

    What is written in NCHW counts images, each of which needs all rows of one.
    """
    graph = simplify(read(model(CONVOLUTIONS, {"x": [3, 8, 12, 6]}, {"y": None}, IMAGE)))
    placed = count_rows(prepare(graph, target=detect("portable")).placed)
    layers = placed.program.layers()
    source, result = placed.rows_of("g"), placed.rows_of("b")
    assert source and result
    assert rows_read(layers[1], "g", source, result) == RowWindow(2, -1, 1, 36)
    written = placed.rows_of("y")
    assert written and written.axes == (0,)
    assert rows_read(layers[2], "b", result, written) == RowWindow(6, 0, 5, 18)
