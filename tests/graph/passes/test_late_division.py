"""Products by a softmax are divided behind the product, where nobody else reads the softmax."""

from typing import Any

import numpy as np
import pytest

from polysci.frontends.onnx import reference
from polysci.graph.passes.table import simplify
from tests.support.networks import read
from tests.support.onnxmodels import model, node, reals

SOFTMAX, PRODUCT = node("Softmax", "x", "a", axis=-1), node("MatMul", "a w", "y")


@pytest.mark.parametrize("shape", [[3, 5], [2, 4, 3, 5]])
def test_the_product_is_divided(shape: list[int]) -> None:
    """One exponential an element, and a quotient an element of the result; sums may overflow."""
    graph = read(model([SOFTMAX, PRODUCT], {"x": shape}, {"y": None}, {"w": reals(5, 2)}))
    changed = simplify(graph)
    operators = [its.op for its in changed.nodes]
    assert operators == ["reduce_max", "sub", "exp", "reduce_sum", "matmul", "div"]
    assert changed.tensors["y"].shape == (*shape[:-1], 2)
    x = {"x": 300 * reals(*shape, seed=3)}
    expected, found = (reference.run(its, x)["y"] for its in (graph, changed))
    np.testing.assert_allclose(found, expected, rtol=0, atol=20 * np.finfo(np.float32).eps)


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ([SOFTMAX, PRODUCT], {"y": None, "a": None}),
        ([SOFTMAX, PRODUCT, node("Neg", "a", "z")], {"y": None, "z": None}),
        ([node("Softmax", "x", "a", axis=0), PRODUCT], {"y": None}),
        ([SOFTMAX, node("MatMul", "a v", "y")], {"y": None}),
        ([SOFTMAX, node("MatMul", "w a", "y")], {"y": None}),
        ([SOFTMAX, node("MatMul", "a a", "y")], {"y": None}),
        ([node("LogSoftmax", "x", "a", axis=-1), PRODUCT], {"y": None}),
    ],
)
def test_softmax_stays(nodes: list[Any], outputs: dict[str, None]) -> None:
    """Where another stage reads it, along another axis, and where its rows are not summed."""
    graph = simplify(read(model(nodes, {"x": [5, 5]}, outputs, {"w": reals(5, 5), "v": reals(5)})))
    assert graph.nodes[0].op.endswith("softmax")


@pytest.mark.parametrize("centred", [True, False])
def test_shares_of_rows_that_others_read(centred: bool) -> None:
    """The product is scaled where exponentials are at most 1; larger ones might overflow."""
    steps = [node("ReduceMax", "x", "m", axes=[-1]) if centred else node("Neg", "r", "m"),
             node("Sub", "x m", "z"), node("Exp", "z", "e"),
             node("ReduceSum", "e last", "t"), node("Reciprocal", "t", "s"),
             node("Mul", "e s", "a"), PRODUCT]  # fmt: skip
    graph = read(model(steps, {"x": [3, 5], "r": [3, 1]}, {"y": None, "s": None},
                       {"w": reals(5, 2), "last": np.array([-1])}))  # fmt: skip
    changed = simplify(graph)
    last = [its.op for its in changed.nodes][-2:]
    assert last == (["matmul", "mul"] if centred else ["mul", "matmul"])
    inputs = {"x": reals(3, 5, seed=3), "r": reals(3, 1)}
    expected, found = (reference.run(its, inputs)["y"] for its in (graph, changed))
    np.testing.assert_allclose(found, expected, rtol=0, atol=20 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("moved", [False, True])
def test_zero_in_place_of_no_number(moved: bool) -> None:
    """A row of a softmax is no number as a whole, and so is its quotient; heads may be merged."""
    steps = [SOFTMAX, node("IsNaN", "a", "n"), node("Where", "n zero a", "c")]
    steps += [node("Reshape", "c rows", "d"), node("MatMul", "d w", "y")] if moved else [
        node("MatMul", "c w", "y")]  # fmt: skip
    weights = {"w": reals(5, 2), "zero": np.float32(0), "rows": np.array([6, 5])}
    graph = read(model(steps, {"x": [2, 3, 5]}, {"y": None}, weights))
    changed = simplify(graph)
    assert changed.nodes[-1].op == "select" and not any(it.op == "softmax" for it in changed.nodes)
    x = reals(2, 3, 5, seed=3)
    x[0, 1, 2], x[1, 0] = np.nan, -np.inf
    expected, found = (reference.run(its, {"x": x})["y"] for its in (graph, changed))
    np.testing.assert_allclose(found, expected, rtol=0, atol=20 * np.finfo(np.float32).eps)
    assert not found.reshape(2, 3, 2)[0, 1].any() and not found.reshape(2, 3, 2)[1, 0].any()
