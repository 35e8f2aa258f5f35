"""Weights of networks are prefetched where L2 does not hold all of them."""

import pytest

from polysci.frontends.onnx import importer
from polysci.network.compiled import PlannedNetwork, plan_network
from polysci.network.options import PlanOptions
from polysci.network.prepare import prepare
from polysci.space.directives import Ahead
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from tests.support.onnxmodels import model, node, reals
from tests.support.samples import resized

GRAPH = importer.graph_of(
    model(
        [node("Conv", "x w", "a"), node("Relu", "a", "r"), node("Conv", "r v", "y")],
        {"x": [1, 64, 12, 12]}, {"y": None},
        {"w": reals(96, 64, 1, 1, seed=1), "v": reals(64, 96, 1, 1, seed=2)},
    )
)  # fmt: skip


@pytest.mark.parametrize(("l2", "prefetched"), [(40 << 10, True), (1 << 20, False)])
def test_weights_are_prefetched_if_all_of_them_exceed_l2(l2: int, prefetched: bool) -> None:
    """Each layer's alone would fit."""
    target = resized(detect("portable"), L2=l2)
    options = PlanOptions(
        "estimate", 1, "f32", "direct", target, machine=assume_rates(target)
    )  # fmt: skip
    net: PlannedNetwork = plan_network(prepare(GRAPH, target=target), options, "net")
    schedules = [*net.schedules.values()]
    assert any(schedule.has(Ahead) for schedule in schedules) is prefetched, schedules
    assert not any(result.schedule.has(Ahead) for result in net.results.values())
