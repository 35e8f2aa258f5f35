"""Normalising operators against ONNX's reference in float64, on hard inputs too."""

from typing import Any

import numpy as np
import pytest

from polysci.errors import UnsupportedError
from polysci.frontends.onnx import reference
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals

pytestmark = pytest.mark.sampled

# Name: node's attributes, shape of x, weights, outputs, opset.
LAYER, GROUP = "LayerNormalization", "GroupNormalization"
CASES: dict[str, tuple[str, dict[str, Any], list[int], list[np.ndarray], str, int]] = {
    "rows": (LAYER, {}, [3, 5, 40], [reals(40), reals(40, seed=1)], "y", 17),
    "without bias": (LAYER, {"epsilon": 0.1}, [7, 9], [reals(9)], "y", 17),
    "two axes": (LAYER, {"axis": -2}, [2, 3, 4, 5], [reals(4, 5), reals(4, 5, seed=1)], "y", 17),
    "rows of images": (LAYER, {}, [2, 3, 4, 24], [reals(24), reals(24, seed=1)], "y", 17),
    "all axes": (LAYER, {"axis": 0}, [3, 6], [reals(3, 6)], "y", 17),
    "statistics": (LAYER, {"axis": 2}, [2, 3, 4, 5], [reals(4, 5)], "y mean inv", 17),
    "spread scale": (LAYER, {"axis": 1}, [2, 3, 5], [reals(3, 1), reals(1)], "y", 17),
    "root mean square": ("RMSNormalization", {}, [4, 33], [reals(33)], "y", 23),
    "root mean square of axes": (
        "RMSNormalization", {"axis": 1, "epsilon": 1e-3}, [4, 3, 7], [reals(3, 7)], "y", 23,
    ),
    "groups": (GROUP, {"num_groups": 3}, [2, 6, 5, 4], [reals(6), reals(6, seed=1)], "y", 21),
    "groups, older": (GROUP, {"num_groups": 2}, [2, 6, 5], [reals(2), reals(2, seed=1)], "y", 18),
    "one group": (GROUP, {"num_groups": 1}, [1, 4, 3], [reals(4), reals(4, seed=1)], "y", 21),
    "instances": ("InstanceNormalization", {"epsilon": 1e-2}, [2, 3, 4, 5],
                  [reals(3), reals(3, seed=1)], "y", 17),
}  # fmt: skip


def normalising(name: str) -> Any:
    op, attributes, shape, weights, outputs, opset = CASES[name]
    names = ["scale", "bias"][: len(weights)]
    made = node(op, " ".join(["x", *names]), outputs, **attributes)
    known = dict(zip(names, weights, strict=True))
    return model([made], {"x": shape}, dict.fromkeys(outputs.split()), known, opset)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_as_onnx_defines_it(name: str, threads: int) -> None:
    graph = read(normalising(name))
    x = reals(*graph.inputs[0].shape, seed=7)
    network, exact = network_of(graph, threads), reference.run(graph, {"x": x})
    for title, result in network({"x": x}).items():
        assert result.shape == exact[title].shape
        assert np.abs(result - exact[title]).max() < 5e-6, title


@pytest.mark.parametrize("name", ["rows", "groups", "instances"])
def test_a_mean_far_from_zero_costs_no_digits(name: str) -> None:
    graph = read(normalising(name))
    x = (reals(*graph.inputs[0].shape, seed=7) + 1000).astype(np.float32)
    exact = reference.run(graph, {"x": x})["y"]
    assert np.abs(network_of(graph)({"x": x})["y"] - exact).max() < 5e-4  # 1000 * 2^-23 of x


def test_statistics_of_bf16_networks_are_f32() -> None:
    values = network_of(read(normalising("rows of images")), dtype="bf16").prepared.program.values
    assert [values[name].dtype for name in ("y.mean", "y.scale")] == ["float32", "float32"]


REFUSED = {
    "groups": (GROUP, {"num_groups": 4}, [2, 6, 5], [reals(6), reals(6)], "4 groups of 6"),
    "vectors": (GROUP, {"num_groups": 2}, [2, 6, 5], [reals(2), reals(2)], "expected 6 elements"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    op, attributes, shape, (scale, bias), told = REFUSED[name]
    nodes = [node(op, "x scale bias", "y", **attributes)]
    built = model(nodes, {"x": shape}, {"y": None}, {"scale": scale, "bias": bias}, 21)
    with pytest.raises(UnsupportedError, match=told):
        network_of(read(built))
