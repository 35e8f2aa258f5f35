"""Gradients of graphs whose batch is empty: sums over nothing are zeros, as PyTorch has them."""

import numpy as np

from polysci.frontends.onnx import reference
from polysci.graph.differentiate import differentiate
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node

SHAPES = {
    "x": (0, 3, 6, 6), "filters": (4, 3, 3, 3), "bias": (4,), "turned": (3, 4, 3, 3),
    "rows": (0, 5), "matrix": (5, 4), "sequence": (0, 7, 5),
}  # fmt: skip
RESULTS = [
    node("Conv", "x filters bias", "r0", pads=[1, 1, 1, 1]),
    node("ConvTranspose", "x turned bias", "r1", strides=[2, 2]),
    node("Gemm", "rows matrix bias", "r2"),
    node("MatMul", "sequence matrix", "r3"),
    node("MaxPool", "x", "r4", kernel_shape=[2, 2]),
    node("AveragePool", "x", "r5", kernel_shape=[2, 2]),
    node("GlobalAveragePool", "x", "r6"),
    node("Softmax", "rows", "r7"),
    node("Gelu", "rows", "r8"),
]


def test_gradients_of_an_empty_batch() -> None:
    squares = [node("Mul", f"r{at} r{at}", f"s{at}") for at in range(len(RESULTS))]
    sums = [node("ReduceSum", f"s{at}", f"l{at}", keepdims=0) for at in range(len(RESULTS))]
    loss = node("Sum", " ".join(f"l{at}" for at in range(len(RESULTS))), "loss")
    proto = model([*RESULTS, *squares, *sums, loss], SHAPES, {"loss": []})
    whole = differentiate(read(proto), "loss", [*SHAPES])
    values = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    made, expected = network_of(whole)(values), reference.run(whole, values)
    assert made["loss"] == 0
    for name, shape in SHAPES.items():
        gradient = made[f"{name}.gradient"]
        assert gradient.shape == shape and not gradient.any()
        assert np.array_equal(gradient, expected[f"{name}.gradient"])
