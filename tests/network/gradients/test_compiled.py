"""Gradients of normalisations, pools and losses as C, beside ONNX's reference in float64."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from polysci.network.frontends.onnx import importer, reference
from polysci.network.gradients.differentiate import differentiate
from polysci.network.ir.graph import Graph
from polysci.network.operators.lower import SUPPORTED
from tests.network.gradients.test_rules import CASES, Case, loss_of
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
