"""What the backward pass computes again: the memory that it saves, and when that pays."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from polysci.cost.networks import RunCost
from polysci.graph.graph import Graph
from polysci.graph.optimizers import SGD
from polysci.graph.passes.table import simplify
from polysci.network.options import CompileOptions
from polysci.network.prepare import prepare_with
from polysci.program.passes.arena import arrange
from polysci.training import compile_training
from polysci.training.memory import spare_memory
from polysci.training.model import StepGraph, build_step, model_of
from tests.support.flags import QUICK
from tests.support.onnxmodels import model, node, reals

CHANNELS, HEADS = 32, 2


def transformer(length: int, layers: int) -> onnx.ModelProto:
    """Return layers of causal self-attention, and scores of classes for each token."""
    below = np.where(np.tril(np.ones((length, length), bool)), 0, -np.inf).astype(np.float32)
    nodes = [node("Constant", "", name, value=numpy_helper.from_array(value)) for name, value in (
        ("mask", below), ("heads", np.array([length, HEADS, -1])), ("rows", np.array([length, -1])),
        ("scale", np.array((CHANNELS // HEADS) ** -0.5, np.float32)),
    )]  # fmt: skip
    weights, x = dict[str, np.ndarray](), "x"
    for at in range(layers):
        for part, axes in (("q", [1, 0, 2]), ("k", [1, 2, 0]), ("v", [1, 0, 2])):
            weights[f"w{part}{at}"] = reals(CHANNELS, CHANNELS, seed=len(weights)) / 6
            nodes += [
                node("MatMul", f"{x} w{part}{at}", f"{part}{at}"),
                node("Reshape", f"{part}{at} heads", f"{part}{at}.heads"),
                node("Transpose", f"{part}{at}.heads", f"{part}{at}.by", perm=axes),
            ]
        nodes += [
            node("MatMul", f"q{at}.by k{at}.by", f"products{at}"),
            node("Mul", f"products{at} scale", f"scores{at}"),
            node("Add", f"scores{at} mask", f"masked{at}"),
            node("Softmax", f"masked{at}", f"shares{at}", axis=-1),
            node("MatMul", f"shares{at} v{at}.by", f"mixed{at}"),
            node("Transpose", f"mixed{at}", f"tokens{at}", perm=[1, 0, 2]),
            node("Reshape", f"tokens{at} rows", f"y{at}"), node("Add", f"{x} y{at}", f"x{at}"),
        ]  # fmt: skip
        x = f"x{at}"
    weights["classes"] = reals(CHANNELS, 5)
    nodes.append(node("MatMul", f"{x} classes", "y"))
    return model(nodes, {"x": [length, CHANNELS]}, {"y": [length, 5]}, weights)


def step_of(length: int, layers: int) -> StepGraph:
    trained = model_of(transformer(length, layers), (length, CHANNELS))
    return build_step(trained, "cross_entropy", SGD())


def arena(graph: Graph, options: CompileOptions) -> int:
    return arrange(prepare_with(simplify(graph), options).placed).size


def test_memory_of_two_layers() -> None:
    """Of the probabilities those of one layer are there at a time."""
    step, options = step_of(64, 2), CompileOptions("estimate", isa="portable")
    spared = spare_memory(step, options)
    shares = HEADS * 64 * 64 * 4
    assert arena(spared, options) <= arena(step.graph, options) - 0.9 * shares


def test_one_layer_keeps_its_probabilities() -> None:
    """The backward pass reads them first, so that memory is no smaller without."""
    step = step_of(64, 1)
    assert spare_memory(step, CompileOptions("estimate", isa="portable")) is step.graph


@pytest.mark.parametrize(
    ("memory", "time", "aims"),
    [
        (90, 105, {"speed", "memory"}),
        (95, 106, {"memory"}),
        (101, 90, {"speed"}),
        (101, 100, {*()}),
    ],
)
def test_when_memory_pays(memory: int, time: float, aims: Collection[str]) -> None:
    """For speed it has to shrink by more than the time grows."""
    kept, again = RunCost(100, 100.0), RunCost(memory, time)
    assert {aim for aim in ("speed", "memory") if again.score(aim) < kept.score(aim)} == {*aims}


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_steps_are_the_same(threads: int) -> None:
    """Of a network in less memory; the forward pass divides by sums behind a product."""
    both = [
        compile_training(
            transformer(96, 2), (96, CHANNELS), optimizer=SGD(lr=0.1), level="estimate",
            threads=threads, isa="avx2", flags=QUICK, recompute=again,
        )
        for again in (False, True)
    ]  # fmt: skip
    x, target = reals(96, CHANNELS, seed=3), np.arange(96) % 5
    for _ in range(5):
        losses = [trainer.step(x, target) for trainer in both]
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    kept, again = both
    for name, value in kept.parameters.items():
        np.testing.assert_allclose(again.parameters[name], value, rtol=0, atol=1e-6)
    bytes_of = [trainer.network.runner.context_bytes for trainer in both]
    assert bytes_of[1] < 0.9 * bytes_of[0]
