"""Transpositions, which go by blocks where rows are long."""

import numpy as np
import pytest

from polysci.graph.builder import GraphBuilder
from polysci.graph.graph import Graph, Tensor
from tests.support.networks import network_of

CASES = [((64, 64), (1, 0)), ((65, 100), (1, 0)), ((80, 256), (1, 0)), ((3, 70, 129), (0, 2, 1)),
         ((70, 3, 67), (2, 1, 0)), ((66, 2, 64), (1, 2, 0))]  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2])
def test_every_element_moves_once(threads: int) -> None:
    inputs = [Tensor(f"x{at}", shape) for at, (shape, _) in enumerate(CASES)]
    tensors = {tensor.name: tensor for tensor in inputs}
    grown = GraphBuilder(Graph("turns", tuple(inputs), (), (), {}, tensors))
    outputs = [grown.transpose(f"x{at}", order) for at, (_, order) in enumerate(CASES)]
    network = network_of(grown.to_graph(inputs, outputs), threads)
    text = "".join(network.code.files.values())
    assert "_block + 8, " in text and "_block + 16, " in text
    values = {
        tensor.name: np.arange(tensor.size, dtype=np.float32).reshape(tensor.shape)
        for tensor in inputs
    }
    made = network(values)
    for name, (at, (_, order)) in zip(outputs, enumerate(CASES), strict=True):
        assert np.array_equal(made[name], values[f"x{at}"].transpose(order)), order
