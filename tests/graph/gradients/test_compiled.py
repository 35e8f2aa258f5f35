"""Gradients of normalisations, pools and losses as C, beside ONNX's reference in float64."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from polysci.frontends.layers import (
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    MaxPool2d,
    ReLU,
    build_model,
)
from polysci.frontends.onnx import importer, reference
from polysci.graph.builder import GraphBuilder
from polysci.graph.differentiate import differentiate
from polysci.graph.formulas import derive
from polysci.graph.graph import Graph
from polysci.graph.operators.lower import SUPPORTED
from tests.graph.gradients.test_rules import CASES, Case, loss_of
from tests.support.networks import network_of

NORMS = ("LayerNormalization", "InstanceNormalization", "BatchNormalization")
GROUPS = {
    "norms of opset 17": [case for case in CASES if case[0] in NORMS],
    "norms of groups": [case for case in CASES if case[0] == "GroupNormalization"],
    "root mean squares": [case for case in CASES if case[0] == "RMSNormalization"],
    "pools": [case for case in CASES if "Pool" in case[0]],
    "losses": [case for case in CASES if "oftmax" in case[0]],
}


def together(cases: list[Case]) -> Graph:
    """One model of many, whose loss is the sum of theirs."""
    models = [onnx.compose.add_prefix(loss_of(case), f"{at}_") for at, case in enumerate(cases)]
    names = [f"{at}_loss" for at in range(len(cases))]
    loss = helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])
    graph = helper.make_graph(
        [node for model in models for node in model.graph.node]
        + [helper.make_node("Sum", names, ["loss"])],
        "together", [tensor for model in models for tensor in model.graph.input], [loss],
        [value for model in models for value in model.graph.initializer],
    )  # fmt: skip
    opset = models[0].opset_import
    return importer.load(
        helper.make_model(graph, opset_imports=opset, ir_version=8), supported=SUPPORTED
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("group", GROUPS)
def test_as_the_reference_has_them(group: str, threads: int) -> None:
    graph = together(GROUPS[group])
    names = [tensor.name for tensor in graph.inputs]
    whole, random = differentiate(graph, "loss", names), np.random.default_rng(5)
    values = {
        tensor.name: random.uniform(0.2, 1.5, tensor.shape).astype(np.float32)
        for tensor in graph.inputs
    }
    exact = reference.run(whole, values)
    results = network_of(whole, threads)(values)
    assert isinstance(results, dict)
    for name in (f"{name}.gradient" for name in names):
        error = np.abs(results[name] - exact[name]).max()
        assert error <= 3e-6 * max(1, np.abs(exact[name]).max()), name


def test_ties_go_to_the_first_of_a_window() -> None:
    """Small whole numbers: equal bit for bit, as sums of them are."""
    random = np.random.default_rng(1)
    words = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    whole = differentiate(together([("MaxPool", [(2, 20, 7, 6)], words, [])]), "loss", ["0_x0"])
    shares = random.integers(-9, 9, whole.constants["0_share"].shape).astype(np.float32)
    whole = replace(whole, constants={**whole.constants, "0_share": shares})
    values = {"0_x0": random.integers(0, 3, (2, 20, 7, 6)).astype(np.float32)}
    exact = reference.run(whole, values)["0_x0.gradient"]
    assert np.array_equal(network_of(whole, 2)(values)["0_x0.gradient"], exact)


@pytest.mark.exhaustive
def test_channels_last_between_convolutions() -> None:
    layers = [
        Conv2d(3, 8, 3, padding=1), BatchNorm2d(8), ReLU(), MaxPool2d(3, 2, 1), Conv2d(8, 16, 1),
        AvgPool2d(3, 2, 1), ReLU(), Conv2d(16, 4, 3),
    ]  # fmt: skip
    made, random = build_model(layers, [2, 3, 19, 17], training=True), np.random.default_rng(2)
    graph = GraphBuilder(made.graph)
    y = made.graph.outputs[0].name
    loss = graph.total(derive(graph, "y * y", y=y), range(4))
    names = ["x", *made.parameters]
    whole = differentiate(graph.to_graph(made.graph.inputs, [loss]), loss, names)
    x = random.normal(size=(2, 3, 19, 17)).astype(np.float32)
    values = {"x": x, **made.parameters, **made.state}
    network, exact = network_of(whole, 2), reference.run(whole, values)
    stages = network.prepared.program.stages
    pools = [stage for stage in stages if "pool_gradient" in stage.name]
    assert len(pools) == 3  # places in windows, and two gradients
    for stage in pools:
        assert network.prepared.program.values[stage.outputs[0]].order == (0, 2, 3, 1)
    results = network(values)
    assert isinstance(results, dict)
    for name in (f"{name}.gradient" for name in names):
        limit = 1e-5 * max(1, np.abs(exact[name]).max())
        assert np.abs(results[name] - exact[name]).max() <= limit, name


@pytest.mark.parametrize("average", [False, True])
def test_pools_beside_torch(average: bool) -> None:
    """Ties, infinities, ceil mode: small whole numbers give the same bits."""
    torch = pytest.importorskip("torch")
    random, cases = np.random.default_rng(7), []
    for number in range(4):
        taps, steps = random.integers(1, 4, 2), random.integers(1, 4, 2)
        pads = [int(random.integers(0, tap // 2 + 1)) for tap in taps]
        words = {"kernel_shape": [*map(int, taps)], "strides": [*map(int, steps)],
                 "pads": pads * 2, "ceil_mode": int(number % 2)}  # fmt: skip
        shape = (int(random.integers(1, 3)), 3, *map(int, random.integers(5, 9, 2)))
        cases.append(("AveragePool" if average else "MaxPool", [shape], words, []))
    whole = together(cases)
    names = [tensor.name for tensor in whole.inputs]
    whole = differentiate(whole, "loss", names)
    shares = {
        name: random.integers(-9, 9, value.shape).astype(np.float32)
        for name, value in whole.constants.items() if name.endswith("share")
    }  # fmt: skip
    whole = replace(whole, constants={**whole.constants, **shares})
    values = {
        tensor.name: random.integers(-2, 3, tensor.shape).astype(np.float32)
        for tensor in whole.inputs
    }
    if not average:
        values[names[0]].flat[::11] = np.inf
    results = network_of(whole)(values)
    for at, (_, _, words, _) in enumerate(cases):
        x = torch.tensor(values[f"{at}_x0"], requires_grad=True)
        told = (words["kernel_shape"], words["strides"], words["pads"][:2])
        pool = torch.nn.functional.avg_pool2d if average else torch.nn.functional.max_pool2d
        extra = {"count_include_pad": False} if average else {}
        y = pool(x, *told, ceil_mode=bool(words["ceil_mode"]), **extra)
        y.backward(torch.tensor(shares[f"{at}_share"]))
        wanted, result = x.grad.numpy(), results[f"{at}_x0.gradient"]
        assert result == pytest.approx(wanted, rel=1e-6, abs=1e-6), words
