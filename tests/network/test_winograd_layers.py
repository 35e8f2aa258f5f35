"""Networks of layers that Winograd's algorithm computes: filters of every kind, gaps in rows."""

from math import prod
from typing import Any

import numpy as np
import pytest

from polysci.frontends.onnx import reference
from polysci.graph.passes.table import simplify
from polysci.network.compiled import build_network
from polysci.network.options import PlanOptions
from polysci.network.prepare import prepare
from polysci.target.host import detect
from tests.support.flags import QUICK
from tests.support.networks import given, read
from tests.support.onnxmodels import model, node, reals

IMAGES = (
    [
        node("Conv", "x a", "p", pads=[0, 3, 0, 3]),
        node("Relu", "p", "pr"),
        node("Conv", "pr b", "q", pads=[2, 2, 2, 2], group=2),
        node("Conv", "pr c", "r", pads=[2, 2, 2, 2], dilations=[2, 2]),
        node("Concat", "q r", "s", axis=1),
        node("Conv", "s d", "t", pads=[2, 2, 2, 2]),
        node("Add", "t pr", "u"),
        node("Sigmoid", "u", "y"),
    ],
    [2, 32, 13, 17],
    {"a": (64, 32, 1, 7), "b": (64, 32, 5, 5), "c": (48, 64, 3, 3), "d": (64, 112, 5, 5)},
)
LINES = (
    [
        node("Conv", "x a", "p", pads=[3, 3]),
        node("Relu", "p", "pr"),
        node("Conv", "pr b", "q", pads=[4, 4], dilations=[2]),
        node("Concat", "q pr", "s", axis=1),
        node("Conv", "s c", "y", pads=[1, 1]),
    ],
    [2, 48, 131],
    {"a": (64, 48, 7), "b": (80, 64, 5), "c": (64, 144, 3)},
)
VOLUMES = (
    [
        node("Conv", "x a", "p", pads=[1] * 6),
        node("Relu", "p", "pr"),
        node("Conv", "pr b", "q", pads=[0, 1, 1, 0, 1, 1]),
        node("Concat", "q q", "s", axis=1),
        node("Conv", "s c", "y", pads=[1] * 6, strides=[2, 1, 1]),
    ],
    [2, 24, 5, 12, 13],
    {"a": (32, 24, 3, 3, 3), "b": (48, 32, 1, 3, 3), "c": (32, 96, 3, 3, 3)},
)
HALVED = (
    [
        node("Conv", "x a", "p", pads=[1] * 4, strides=[2, 2]),
        node("Relu", "p", "pr"),
        node("Conv", "pr b", "q", pads=[2, 1, 2, 2], strides=[2, 2]),
        node("Conv", "pr c", "r", pads=[1] * 4, strides=[2, 2], group=2),
        node("Add", "q r", "s"),
        node("Conv", "s d", "t", pads=[3, 1, 3, 1], strides=[2, 1]),
        node("Sigmoid", "t", "y"),
    ],
    [2, 48, 57, 50],
    {"a": (64, 48, 3, 3), "b": (64, 64, 5, 4), "c": (64, 32, 3, 3), "d": (64, 64, 7, 3)},
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "network", [IMAGES, LINES, VOLUMES, HALVED], ids=["images", "lines", "volumes", "strides"]
)
def test_layers_are_taken_and_right(network: tuple[Any, list[int], Any], threads: int) -> None:
    nodes, shape, sizes = network
    weights = {
        name: reals(*size) / np.float32(prod(size[1:]) ** 0.5) for name, size in sizes.items()
    }
    graph, target = read(model(nodes, {"x": shape}, {"y": None}, weights)), detect()
    options = PlanOptions("estimate", threads, "f32", "auto", target)
    built = build_network(prepare(simplify(graph), target=target), options, "net", flags=QUICK)
    schedules = [str(call.source.schedule) for call in built.code.calls.values()]
    assert any("winograd(" in schedule for schedule in schedules)
    exact = reference.run(graph, given(graph))["y"]
    assert np.abs(built(given(graph))["y"] - exact).max() < 1e-4 * np.abs(exact).max()


@pytest.mark.exhaustive
def test_layers_with_filters_in_f16_are_right_within_the_bounds_of_narrow_networks() -> None:
    nodes, shape, sizes = IMAGES
    weights = {
        name: reals(*size) / np.float32(prod(size[1:]) ** 0.5) for name, size in sizes.items()
    }
    graph, target = read(model(nodes, {"x": shape}, {"y": None}, weights)), detect()
    networks = [
        build_network(
            prepare(simplify(graph), target=target),
            PlanOptions("estimate", 1, "f32", algorithm, target), "net", flags=QUICK,
        )
        for algorithm in ("winograd", "winograd_f16")
    ]  # fmt: skip
    plain, narrow = networks
    assert all("winograd_f16(" in str(its) for its in narrow.schedules.values())
    assert narrow.summary.narrow and not plain.summary.narrow
    packed = [its.code.weights_file.packed_size for its in (narrow, plain)]
    assert packed[0] < 0.6 * packed[1]
    exact = reference.run(graph, given(graph))["y"]
    assert 0 < np.abs(narrow(given(graph))["y"] - exact).max() < 1e-2 * np.abs(exact).max()
