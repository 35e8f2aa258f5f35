"""Networks whose stages run together on devices, with results that are whole numbers."""

from typing import Any

import numpy as np
import onnx

from polysci.frontends.onnx import reference
from polysci.network.compiled import CompileOptions, Network, build_network
from polysci.network.prepare import prepare_with
from polysci.program.stages import RowFusion
from polysci.target.target import Target
from tests.support.device_cases import integers
from tests.support.networks import read
from tests.support.onnxmodels import model, node

PADDED = {"pads": [1, 1, 1, 1]}
HALVES = {"kernel_shape": [2, 2], "strides": [2, 2]}
PRODUCTS = {"w": integers((9, 24), 1), "v": integers((24, 12), 2)}
# Nodes, the shape of x, weights, tensors inside of row fusions: each result is a whole number.
CASES: dict[str, tuple[list[onnx.NodeProto], tuple[int, ...], dict[str, Any], str]] = {
    "products": (
        [node("MatMul", "x w", "a"), node("Relu", "a", "r"), node("MatMul", "r v", "y")],
        (71, 9), PRODUCTS, "r",
    ),
    "tokens": (
        [node("MatMul", "x w", "a"), node("Add", "a b", "c"), node("Abs", "c", "d"),
         node("MatMul", "d v", "e"), node("Neg", "e", "y")],
        (1, 40, 9), {**PRODUCTS, "b": integers((24,), 3)}, "c d e",
    ),
    "several readers": (
        [node("MatMul", "x w", "a"), node("Abs", "a", "b"), node("MatMul", "b s", "c"),
         node("Max", "c a", "d"), node("MatMul", "d v", "y")],
        (71, 9), {**PRODUCTS, "s": integers((24, 24), 4)}, "a b c d",
    ),
    "halo": (
        [node("Conv", "x w b", "a"), node("Relu", "a", "r"), node("Conv", "r v", "c", **PADDED),
         node("MaxPool", "c", "m", **HALVES), node("Conv", "m u", "y")],
        (1, 8, 14, 10),
        {"w": integers((24, 8, 1, 1), 1), "v": integers((8, 24, 3, 3), 2), "b": integers((24,), 3),
         "u": integers((5, 8, 1, 1), 4)},
        "x.copy r c",
    ),
    "strides": (
        [node("Conv", "x w", "a", **PADDED),
         node("MaxPool", "a", "p", kernel_shape=[3, 3], strides=[2, 2], **PADDED),
         node("Conv", "p v", "c", strides=[2, 2], **PADDED), node("Conv", "c u", "y")],
        (1, 5, 22, 17),
        {"w": integers((12, 5, 3, 3), 1), "v": integers((8, 12, 3, 3), 2),
         "u": integers((5, 8, 1, 1), 4)},
        "x.copy a p",
    ),
    "bottleneck": (
        [node("Conv", "x w", "a"), node("Clip", "a lo hi", "r"),
         node("Conv", "r u", "d", group=24, **PADDED), node("Relu", "d", "q"),
         node("Conv", "q v", "c"), node("Add", "c x", "s"),
         node("Conv", "s t", "y")],
        (1, 8, 12, 10),
        {"w": integers((24, 8, 1, 1), 1), "u": integers((24, 1, 3, 3), 2),
         "v": integers((8, 24, 1, 1), 3), "t": integers((5, 8, 1, 1), 4), "lo": np.float32(-9),
         "hi": np.float32(30)},
        "x.copy r q",
    ),
    "residuals": (
        [node("MatMul", "x w", "a"), node("Relu", "a", "r"), node("MatMul", "r v", "b"),
         node("Add", "b x", "c"), node("MatMul", "c u", "d"), node("Add", "d c", "e"),
         node("Abs", "e", "f"), node("MatMul", "f u", "g"), node("Add", "g c", "y")],
        (71, 9),
        {"w": integers((9, 24), 1), "v": integers((24, 9), 2), "u": integers((9, 9), 3)},
        "r c e f",
    ),
    "images": (
        [node("Conv", "x w", "a", **PADDED), node("Abs", "a", "r"),
         node("Conv", "r v", "y", **PADDED)],
        (5, 8, 6, 6), {"w": integers((16, 8, 3, 3), 1), "v": integers((8, 16, 3, 3), 2)},
        "x.copy a r",
    ),
    "pools of images": (
        [node("Conv", "x w", "a", **PADDED),
         node("MaxPool", "a", "p", kernel_shape=[3, 3], strides=[2, 2], **PADDED),
         node("Conv", "p u", "d", group=12, **PADDED), node("Conv", "d v", "c"),
         node("Add", "c p", "s"), node("Abs", "s", "q"), node("Conv", "q t", "y")],
        (3, 5, 16, 12),
        {"w": integers((12, 5, 3, 3), 1), "u": integers((12, 1, 3, 3), 2),
         "v": integers((12, 12, 1, 1), 3), "t": integers((5, 12, 1, 1), 4)},
        "x.copy a p d s q",
    ),
}  # fmt: skip


def fused(case: str, target: Target, threads: int) -> Network:
    """Return the network of a case, whose row fusions hold the tensors that they should."""
    nodes, shape, weights, inside = CASES[case]
    options = CompileOptions("estimate", threads, target=target)
    graph = read(model(nodes, {"x": shape}, {"y": None}, weights))
    network = build_network(prepare_with(graph, options), options.plan(), "fused")
    stages = network.code.placed.program.stages
    found = [name for it in stages if isinstance(it, RowFusion) for name in it.internal]
    assert " ".join(found) == inside, network.prepared.fusions
    return network


def check(case: str, network: Network) -> None:
    """Compare a network's output with the reference, bit for bit."""
    nodes, shape, weights, _ = CASES[case]
    x = integers(shape, 9)
    expected = reference.run(read(model(nodes, {"x": shape}, {"y": None}, weights)), {"x": x})["y"]
    assert np.array_equal(network({"x": x})["y"], expected)
