"""What a network loses against float64, tensor by tensor, within what f32 explains."""

import numpy as np
import pytest

from polysci.network.debug import compare_tensors
from tests.support.compiling import ISA
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals

pytestmark = pytest.mark.sampled


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("op", ["ReduceMean", "GlobalAveragePool"])
def test_means_of_many_elements(op: str, threads: int) -> None:
    """19,200 numbers of one sign: summed one after the other in f32 they lose 4 to 5 digits."""
    attributes = {"axes": [2, 3], "keepdims": 1} if op == "ReduceMean" else {}
    nodes = [
        node("Conv", "x w b", "c"), node("Relu", "c", "r"), node(op, "r", "m", **attributes),
        node("Conv", "m w", "z"), node("Sigmoid", "z", "s"), node("Mul", "r s", "y"),
    ]  # fmt: skip
    weights = {"w": 0.1 * reals(8, 8, 1, 1), "b": np.full(8, 3, np.float32)}
    shape = (1, 8, 120, 160)
    made = model(nodes, {"x": shape}, {"y": shape}, weights, 13)
    network = network_of(read(made), threads, apart=True, isa=ISA)
    rows = compare_tensors(network, {"x": reals(*shape, seed=7)}, strict=True)
    assert {"m", "y"} <= {row.tensor for row in rows}
    assert not [row for row in rows if row.wrong]
