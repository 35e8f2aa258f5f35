"""Layers whose weights are equal, and packed alike, read one packed copy."""

import numpy as np
import pytest

from polysci.lower.layer_calls import packed_once
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals

SIZE = 32
X, W = reals(3, SIZE), reals(SIZE, SIZE, seed=1) / 4


@pytest.mark.parametrize("equal", [True, False])
def test_equal_weights_are_packed_once(equal: bool) -> None:
    other = W.copy() if equal else W + np.eye(SIZE, dtype=np.float32) / 8
    nodes = [node("MatMul", "x v", "a"), node("Tanh", "a", "b"), node("MatMul", "b w", "y")]
    weights = {"v": W, "w": other}
    network = network_of(read(model(nodes, {"x": [3, SIZE]}, {"y": None}, weights)))
    file, calls = network.code.weights_file, [*network.code.calls.values()]
    assert len(calls) == 2
    assert len(packed_once(calls)) == 2 - equal
    assert file.packed_size == sum(call.source.packed for call in packed_once(calls))
    np.testing.assert_allclose(network({"x": X})["y"], np.tanh(X @ W) @ other, atol=1e-5)
