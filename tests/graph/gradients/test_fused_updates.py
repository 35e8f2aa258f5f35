"""Gradients of recurrent weights, summed in every step and by one product behind all of them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from polysci import compile_network, layers, training
from polysci.cost.networks import StageCosts
from polysci.errors import SpecError
from polysci.graph.operators.lower import lower
from polysci.network.options import machine_for
from polysci.network.prepare import graph_of, pass_context, prepare
from polysci.ops.matmul import Matmul
from polysci.program.passes.fused_updates import UpdatePredictions, step_products
from polysci.program.passes.table import PassChoices, PassContext, program_before
from polysci.program.stages import LayerStage, Program, RepeatStage
from polysci.target.host import detect
from tests.graph.gradients.test_recurrent import CASES, gradient_graph, shares_of
from tests.graph.operators.test_recurrent import arrays_of
from tests.support.flags import QUICK

Array = np.ndarray
TARGET = detect()
WIDE = {"steps": 7, "batch": 4, "size": 24, "hidden": 20}


def products_in_steps(program: Program) -> list[int]:
    """By loop over steps, how many layers add to what it carries over."""
    return [
        sum(isinstance(part, LayerStage) and bool(part.residual) for part in stage.members)
        for stage in program.stages
        if isinstance(stage, RepeatStage)
    ]


def gradients(graph: Any, known: Mapping[str, Array], update: str, threads: int = 1,
              **words: Any) -> dict[str, Array]:  # fmt: skip
    network = compile_network(graph, "estimate", threads, update=update, flags=QUICK, **words)
    return dict(network(known))


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", [
    "lstm, both ways", "lstm, batch first", "lstm, lengths", "gru", "gru, early, order",
    "rnn, clamped", "lstm, one step",
])  # fmt: skip
def test_both_updates_sum_the_same(name: str, threads: int) -> None:
    """Apart by 1e-5 of the largest at most, as the order of sums differs."""
    op, attributes, extents = CASES[name]
    sizes = {} if {"steps", "lengths"} & {*extents} else WIDE
    arrays = arrays_of(op, attributes, {**extents, **sizes})
    graph, known, wanted = gradient_graph(
        op, attributes, arrays, shares_of(op, attributes, arrays), "float32"
    )
    fused = prepare(graph, target=TARGET, choices=PassChoices(update="fused")).program
    count = 2 if attributes.get("direction") == "bidirectional" else 1
    early = name.startswith("gru, early")
    assert products_in_steps(fused)[count:] == [2 + 2 * early] * count
    made, apart = (gradients(graph, known, way, threads) for way in ("fused", "diffused"))
    for what in wanted:
        value = apart[f"{what}.gradient"]
        assert np.abs(value - made[f"{what}.gradient"]).max() < 1e-5 * np.abs(value).max(), what
        if what not in "wr":
            assert np.array_equal(value, made[f"{what}.gradient"])


@pytest.mark.exhaustive
def test_updates_of_bf16() -> None:
    """Both ways round factors alike: as near to f32 as 8 bits of a number allow."""
    words, known = "lstm:T6xN4xC24xK20 bwd", dict[str, Array]()
    for at, tensor in enumerate(graph_of(words).inputs):
        random = np.random.default_rng(at)
        known[tensor.name] = 0.2 * random.standard_normal(tensor.shape, np.float32)
    exact = gradients(words, known, "diffused")
    for way in ("fused", "diffused"):
        made = gradients(words, known, way, dtype="bf16")
        assert made.keys() == exact.keys()
        for name, value in exact.items():
            error = np.abs(made[name] - value).max() / np.abs(value).max()
            assert 0 < error < 2.0**-7, (way, name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_whole_numbers_are_exact(threads: int) -> None:
    """A clamped RNN of small whole numbers loses nothing, whatever the order of sums."""
    rng = np.random.default_rng(5)
    shapes = [(6, 9, 17), (2, 33, 17), (2, 33, 33), (2, 66)]
    arrays = [rng.integers(-1, 2, shape).astype(np.float32) for shape in shapes]
    attributes = {"activations": ["Relu"] * 2, "direction": "bidirectional"}
    shares = [rng.integers(-2, 3, (6, 2, 9, 33)), rng.integers(-2, 3, (2, 9, 33))]
    graph, known, wanted = gradient_graph("RNN", attributes, arrays, shares, "float32")
    double, exact_known, _ = gradient_graph("RNN", attributes, arrays, shares, "float64")
    exact = gradients(double, exact_known, "diffused")
    made = gradients(graph, known, "fused", threads, reproducible=True)
    for what in wanted:
        value = exact[f"{what}.gradient"]
        assert np.array_equal(made[f"{what}.gradient"], value), what
        assert np.abs(value).max() < 1 << 24 and value.any(), what


@pytest.mark.exhaustive
def test_training_learns_the_same() -> None:
    """Gradients of parameters that a step replaces where they lie."""
    rng = np.random.default_rng(2)
    x, target = rng.normal(size=(6, 4, 8)).astype(np.float32), np.array([0, 2, 1, 1])
    parts = [layers.LSTM(8, 12, num_layers=2, last=True), layers.Linear(12, 3)]
    losses = [
        [trainer.step(x, target) for _ in range(4)]
        for trainer in (
            training.compile_training(
                parts, (6, 4, 8), optimizer=training.Adam(1e-2), level="estimate", update=way
            )
            for way in ("fused", "diffused")
        )
    ]
    assert np.allclose(*losses, rtol=1e-5) and losses[0][-1] < losses[0][0]


def products_of(words: str) -> tuple[Program, PassContext]:
    """A program before updates are fused."""
    context = pass_context("f32", TARGET, machine_for(TARGET))
    return program_before("fused updates", lower(graph_of(words)), context), context


@pytest.mark.exhaustive
def test_the_model_weighs_both() -> None:
    """Gradients that fit in L2 cost a step little; what many steps made is far by then."""
    machine = machine_for(TARGET)
    costs = StageCosts(machine, TARGET)
    predictions = UpdatePredictions(costs, pass_context("f32", TARGET, machine).predict)
    few, many = (products_of(f"lstm:{words} bwd")[0] for words in (
        "T40xN1xC512xK512", "T200xN256xC16xK16"
    ))  # fmt: skip
    for program, wins in ((few, False), (many, True)):
        products = step_products(program)
        assert len(products) == 2
        for product in products:
            fused, diffused = (
                predictions.fused(product, products),
                predictions.diffused(product),
            )
            assert (fused < diffused) == wins
            assert product.rows * product.stage.count == product.layer.problem.terms


@pytest.mark.exhaustive
def test_what_was_taken_is_told() -> None:
    graph, taken = graph_of("rnn:T40xN1xC64xK64 bwd"), dict[str, dict[str, str]]()
    for way in ("auto", "fused", "diffused"):
        made = prepare(graph, target=TARGET, choices=PassChoices(update=way))
        loops = [stage.name for stage in made.program.stages if isinstance(stage, RepeatStage)]
        taken[way] = {
            it.tensor: it.refusal
            for it in made.fusions
            if it.second in loops and it.first not in loops
        }
        assert products_in_steps(made.program)[-1] == 2 * (way == "fused")
    assert [*taken["fused"].values()] == ["", ""]
    assert [*taken["diffused"].values()] == ["updates are diffused"] * 2
    assert all("us in steps" in refusal for refusal in taken["auto"].values())
    otherwise = PassChoices(updates=frozenset(taken["auto"]))
    turned = prepare(graph, target=TARGET, choices=otherwise).program
    assert products_in_steps(turned)[-1] == 2


def test_only_plain_products_of_all_steps_are_summed_in_steps() -> None:
    program, _ = products_of("rnn:T5xN4xC8xK12 bwd")
    for product in step_products(program):
        problem = product.layer.problem
        assert isinstance(problem, Matmul)
        for other in (
            replace(product.layer, problem=problem.with_(alpha=2.0)),
            replace(product.layer, bias="b"),
            replace(product.layer, problem=problem.with_(transposed="")),
        ):
            stages = [other if it is product.layer else it for it in program.stages]
            assert len(step_products(replace(program, stages=tuple(stages)))) == 1


def test_another_update_is_refused() -> None:
    with pytest.raises(SpecError, match="update 'both': a network has auto or fused or diffused"):
        prepare(graph_of("rnn:T2xN1xC2xK2 bwd"), choices=PassChoices(update="both"))
