"""Reductions of ONNX's reference that are computed here, by hand."""

import numpy as np
import pytest

from polysci.frontends.onnx.reference import compute_by_own_rules
from polysci.graph.graph import Node
from polysci.graph.operators import operator_of_onnx
from polysci.graph.operators.table import Evaluation

X = np.random.default_rng(0).normal(size=(2, 3, 4))


def corrected(op: str, x: np.ndarray, **words: float) -> np.ndarray:
    node = Node(operator_of_onnx(op), ("x",), ("y",), words)
    results = compute_by_own_rules(Evaluation(node, {"x": x}))
    assert results is not None
    return results[0]


@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms(p: int) -> None:
    size = np.linalg.norm(X, ord=p, axis=2, keepdims=True)
    np.testing.assert_allclose(corrected("LpNormalization", X, p=p), X / size)
    np.testing.assert_allclose(corrected("GlobalLpPool", X, p=p), size)
    assert not corrected("LpNormalization", 0 * X, p=p).any()


def test_what_the_reference_knows_of_some_shapes_alone() -> None:
    np.testing.assert_array_equal(corrected("GlobalMaxPool", X), X.max(2, keepdims=True))
    assert corrected("Softsign", np.array(-3.0)) == -0.75
