"""Row fusions on devices: in a work-item, or in a group of them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from polysci.frontends.onnx import reference
from polysci.network.compiled import CompileOptions, Network, compile_network
from polysci.program.stages import RowFusion
from polysci.runtime.backends import backend_named
from polysci.target.target import Target
from tests.support.any_device import at_hand
from tests.support.device_cases import integers
from tests.support.networks import read
from tests.support.onnxmodels import model, node
from tests.support.rates import fuse_rows_everywhere

PADDED = {"pads": [1, 1, 1, 1]}
PRODUCTS = {"w": integers((9, 24), 1), "v": integers((24, 12), 2)}
# Nodes, the shape of x, weights, members of row fusions: each result is a whole number.
CASES: dict[str, tuple[list[onnx.NodeProto], tuple[int, ...], dict[str, Any], list[int]]] = {
    "products": (
        [node("MatMul", "x w", "a"), node("Relu", "a", "r"), node("MatMul", "r v", "y")],
        (71, 9), PRODUCTS, [2],
    ),
    "tokens": (
        [node("MatMul", "x w", "a"), node("Add", "a b", "c"), node("Abs", "c", "d"),
         node("MatMul", "d v", "e"), node("Neg", "e", "y")],
        (1, 40, 9), {**PRODUCTS, "b": integers((24,), 3)}, [4],
    ),
    "halo": (
        [node("Conv", "x w b", "a"), node("Relu", "a", "r"), node("Conv", "r v", "y", **PADDED)],
        (1, 8, 13, 9),
        {"w": integers((24, 8, 1, 1), 1), "v": integers((8, 24, 3, 3), 2), "b": integers((24,), 3)},
        [2],
    ),
    "strides": (
        [node("Conv", "x w", "a", **PADDED),
         node("MaxPool", "a", "p", kernel_shape=[3, 3], strides=[2, 2], **PADDED),
         node("Conv", "p v", "c", strides=[2, 2], **PADDED), node("Relu", "c", "y")],
        (1, 5, 22, 17), {"w": integers((12, 5, 3, 3), 1), "v": integers((8, 12, 3, 3), 2)}, [3],
    ),
    "bottleneck": (
        [node("Conv", "x w", "a"), node("Clip", "a lo hi", "r"),
         node("Conv", "r u", "d", group=24, **PADDED), node("Relu", "d", "q"),
         node("Conv", "q v", "c"), node("Add", "c x", "y")],
        (1, 8, 11, 10),
        {"w": integers((24, 8, 1, 1), 1), "u": integers((24, 1, 3, 3), 2),
         "v": integers((8, 24, 1, 1), 3), "lo": np.float32(-9), "hi": np.float32(30)},
        [3],
    ),
    "images": (
        [node("Conv", "x w", "a", **PADDED), node("Abs", "a", "r"),
         node("Conv", "r v", "y", **PADDED)],
        (5, 8, 6, 6), {"w": integers((16, 8, 3, 3), 1), "v": integers((8, 16, 3, 3), 2)}, [4],
    ),
}  # fmt: skip


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """A device that is a CPU, on which stages run together wherever they may."""
    fuse_rows_everywhere(monkeypatch)
    with at_hand("opencl:0") as name:
        (target,) = backend_named(name).targets()
        yield target


def fused(case: str, target: Target, threads: int) -> Network:
    """Return the network of a case; its row fusions have as many members as they should."""
    nodes, shape, weights, members = CASES[case]
    network = compile_network(
        model(nodes, {"x": shape}, {"y": None}, weights),
        CompileOptions("estimate", threads, target=target),
    )
    stages = network.code.placed.program.stages
    found = [len(stage.members) for stage in stages if isinstance(stage, RowFusion)]
    assert found == members, network.prepared.fusions
    return network


def check(case: str, network: Network) -> None:
    """Compare a network's output with the reference, bit for bit."""
    nodes, shape, weights, _ = CASES[case]
    x = integers(shape, 9)
    expected = reference.run(read(model(nodes, {"x": shape}, {"y": None}, weights)), {"x": x})["y"]
    assert np.array_equal(network({"x": x})["y"], expected)


@pytest.mark.parametrize(
    ("case", "threads"),
    [pytest.param(case, threads, marks=[pytest.mark.exhaustive] * (case != "halo" or threads < 2))
     for case in CASES for threads in (1, 3)],
)  # fmt: skip
def test_rows_of_work_items_are_exact(case: str, threads: int, cpu: Target) -> None:
    """Each work-item has rings of its own in the device's memory."""
    check(case, fused(case, cpu, threads))
