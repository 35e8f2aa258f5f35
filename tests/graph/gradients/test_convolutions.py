"""Gradients of convolutions, compiled: small whole numbers, so every bit is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polysci.frontends.onnx import reference
from polysci.graph.differentiate import differentiate
from polysci.program.stages import LayerStage
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node

Shape = tuple[int, ...]
CASES: list[tuple[str, Shape, Shape, dict[str, Any]]] = [
    ("Conv", (2, 8, 7, 6), (16, 8, 3, 3), {"pads": [1, 1, 1, 1]}),
    ("Conv", (1, 8, 7, 6), (4, 8, 1, 1), {}),
    ("Conv", (3, 4, 9, 8), (6, 4, 3, 2), {"strides": [2, 3], "pads": [1, 0, 1, 1]}),
    ("Conv", (2, 4, 9, 8), (6, 2, 3, 3), {"group": 2, "dilations": [2, 1], "pads": [2, 1, 2, 1]}),
    ("Conv", (2, 4, 9, 8), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    ("Conv", (2, 4, 9, 8), (8, 1, 3, 3), {"group": 4, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("Conv", (2, 4, 11), (6, 4, 3), {"strides": [2], "pads": [1, 1]}),
    ("Conv", (2, 4, 11), (6, 2, 3), {"group": 2, "dilations": [3]}),
    ("Conv", (1, 2, 4, 5, 3), (3, 2, 2, 2, 1), {"strides": [2, 1, 1]}),
    ("Conv", (2, 4, 5, 4, 6), (4, 2, 3, 2, 3), {"group": 2, "pads": [1, 0, 1, 1, 1, 1]}),
    ("Conv", (1, 4, 5, 4, 6), (4, 1, 2, 2, 2), {"group": 4, "dilations": [2, 1, 2]}),
    ("Conv", (1, 1, 5, 5), (1, 1, 5, 5), {}),
    ("ConvTranspose", (2, 4, 5, 6), (4, 3, 3, 2), {"strides": [2, 1], "output_padding": [1, 0]}),
    ("ConvTranspose", (2, 4, 5, 6), (4, 3, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    ("ConvTranspose", (1, 3, 5), (3, 2, 3), {"dilations": [2], "strides": [3]}),
    ("ConvTranspose", (1, 3, 4, 4), (3, 1, 2, 2), {"strides": [2, 2]}),
    ("ConvTranspose", (1, 3, 3, 2, 4), (3, 2, 2, 3, 2), {"strides": [2, 1, 2]}),
]


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]}-{at}" for at, case in enumerate(CASES)])
@pytest.mark.parametrize("threads", [1, 2])
def test_integers_give_exact_gradients(case: tuple[Any, ...], threads: int) -> None:
    op, x, w, words = case
    if threads == 2 and case not in CASES[2:5]:
        pytest.skip("threads share the work alike")
    filters = w[0] if op == "Conv" else w[1] * words.get("group", 1)
    proto = model(
        [node(op, "x w b", "y", **words), node("Mul", "y y", "square"),
         node("ReduceSum", "square", "loss", keepdims=0)],
        {"x": x, "w": w, "b": [filters]}, {"loss": []},
    )  # fmt: skip
    graph = differentiate(read(proto), "loss", ["x", "w", "b"])
    rng = np.random.default_rng(0)
    values = {
        tensor.name: rng.integers(-2, 3, tensor.shape).astype(np.float32)
        for tensor in graph.inputs
    }  # fmt: skip
    network = network_of(graph, threads)
    made, exact = network(values), reference.run(graph, values)
    for name in ("x.gradient", "w.gradient", "b.gradient"):
        assert np.array_equal(made[name], exact[name]), name
    layers = [stage for stage in network.prepared.program.layers() if isinstance(stage, LayerStage)]
    assert len(layers) >= 3


@pytest.mark.parametrize("case", [case for case in CASES if case[0] == "ConvTranspose"])
def test_the_quick_reference_of_transposed_convolutions_is_onnx_s(case: tuple[Any, ...]) -> None:
    """Attributes that are left to their defaults go to ONNX's."""
    op, x, w, words = case
    axes = len(x) - 2
    full = {"strides": [1] * axes, "dilations": [1] * axes, "pads": [0] * 2 * axes,
            "kernel_shape": w[2:], **words}  # fmt: skip
    rng, values = np.random.default_rng(0), dict[str, Any]()
    for name, shape in (("x", x), ("w", w), ("b", (w[1] * words.get("group", 1),))):
        values[name] = rng.integers(-2, 3, shape).astype(np.float32)
    shapes = {name: value.shape for name, value in values.items()}
    quick, plain = (
        reference.run(read(model([node(op, "x w b", "y", **some)], shapes, {"y": None})), values)
        for some in (full, words)
    )
    assert np.array_equal(quick["y"], plain["y"])
