"""The order of tensors in memory: the cheapest choice for the whole program."""

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from polysci.frontends.onnx import importer
from polysci.graph.operators.lower import lower
from polysci.graph.passes.table import simplify
from polysci.network.compiled import compile_network
from polysci.program.passes import layouts
from polysci.program.stages import Program, channels_last
from polysci.space.directives import Swap
from polysci.target.microkernels import find
from tests.support.flags import QUICK
from tests.support.onnxmodels import model, node, reals


def program_of(nodes: list, weights: dict, shape: tuple[int, ...] = (1, 8, 12, 12)) -> Program:
    one = model(nodes, {"x": list(shape)}, {"y": None}, weights)
    return lower(simplify(importer.graph_of(one)))


def orders(program: Program) -> dict[str, str]:
    """Tensor -> "last" or "plain"."""
    found = layouts.with_orders(program).values
    return {
        name: "last" if value.order == channels_last(len(value.shape)) else "plain"
        for name, value in found.items()
        if len(value.shape) > 2 and name not in program.constants
    }


def test_edges_are_plain_and_layers_have_channels_last() -> None:
    """The tensors between convolutions, whatever stands between them."""
    nodes = [
        node("Conv", "x w", "a"), node("Sigmoid", "a", "b"), node("Conv", "b w", "c"),
        node("Tanh", "c", "d"), node("MaxPool", "d", "e", kernel_shape=[2, 2]),
        node("Conv", "e w", "f"), node("Softmax", "f", "y", axis=1),
    ]  # fmt: skip
    found = orders(program_of(nodes, {"w": reals(8, 8, 1, 1)}))
    assert found["x"] == found["y"] == "plain"
    assert {found[name] for name in "abcde"} == {"last"}


def test_what_no_layer_touches_stays_plain() -> None:
    """Between plain edges there is nothing to gain."""
    nodes = [node("Tanh", "x", "a"), node("Softmax", "a", "b", axis=1), node("Sigmoid", "b", "y")]
    assert set(orders(program_of(nodes, {})).values()) == {"plain"}


def test_a_reshape_keeps_its_source_plain_where_that_is_cheaper() -> None:
    """Tanh's result is only reshaped: gathering it would cost more than writing it plain."""
    nodes = [node("Tanh", "x", "a"), node("Reshape", "a shape", "y")]
    assert orders(program_of(nodes, {"shape": np.array([1, -1])}))["a"] == "plain"


def test_layers_between_plain_tensors_are_problems_of_that_layout() -> None:
    """And the first and the last one of a chain are not: the tensor between them is not plain."""
    alone = program_of([node("Conv", "x w", "y")], {"w": reals(8, 8, 1, 1)})
    nodes = [node("Conv", "x w", "a"), node("Conv", "a w", "y")]
    for program, layouts_of_layers in (
        (alone, ["nchw"]),
        (program_of(nodes, {"w": reals(8, 8, 1, 1)}), ["nhwc", "nhwc"]),
    ):
        layers = layouts.with_orders(program).layers()
        assert [layer.problem.layout for layer in layers] == layouts_of_layers


@pytest.mark.exhaustive
def test_a_depthwise_layer_between_plain_tensors_is_a_stencil() -> None:
    nodes = [node("Conv", "x w", "y", group=8, pads=[1, 1, 1, 1], strides=[1, 2])]
    one = model(nodes, {"x": [2, 8, 20, 21]}, {"y": None}, {"w": reals(8, 1, 3, 3)})
    network = compile_network(one, "estimate", isa="portable", flags=QUICK)
    (schedule,) = network.schedules.values()
    assert find(schedule.kernel).family == "stencil2"
    x = np.random.default_rng(0).integers(-3, 4, (2, 8, 20, 21)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))).astype(np.float64)
    w = reals(8, 1, 3, 3)
    want = sum(
        padded[:, :, r : r + 20, s : s + 21 : 2] * w[None, :, 0, r, s, None, None]
        for r in range(3)
        for s in range(3)
    )
    assert np.allclose(network(x), want, atol=1e-4)


W, ENDS = {"w": reals(3, 8, 1, 1)}, {"from": np.array([2]), "to": np.array([9])}
APART = {
    "columns of a whole": (
        [node("Conv", "x w", "a"), node("Tanh", "x", "b"), node("Concat", "a b", "y", axis=3)],
        {"w": reals(8, 8, 1, 1)},
    ),
    "a part of the columns": (
        [node("Slice", "x from to axes", "a"), node("Conv", "a w", "y")],
        {**W, **ENDS, "axes": np.array([3])},
    ),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", APART)
def test_a_layer_whose_rows_have_gaps_keeps_its_layout(name: str) -> None:
    """What is searched as a layer in NCHW may need rows that follow each other."""
    nodes, weights = APART[name]
    layers = layouts.with_orders(program_of(nodes, weights)).layers()
    assert {layer.problem.layout for layer in layers} == {"nhwc"}
    one = model(nodes, {"x": [1, 8, 12, 12]}, {"y": None}, weights)
    network = compile_network(one, "estimate", isa="portable", flags=QUICK)
    x = np.random.default_rng(0).standard_normal((1, 8, 12, 12)).astype(np.float32)
    (want,) = ReferenceEvaluator(one).run(None, {"x": x})
    assert np.allclose(network(x), want, atol=1e-4)


def test_parts_whose_rows_follow_each_other_are_layers_in_nchw() -> None:
    nodes, weights = APART["columns of a whole"]
    nodes = [*nodes[:2], node("Concat", "a b", "y", axis=2)]
    layers = layouts.with_orders(program_of(nodes, weights)).layers()
    assert [layer.problem.layout for layer in layers] == ["nchw"]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(["conv", "tanh", "branch", "pool"]), min_size=1, max_size=5))
def test_no_choice_is_cheaper(steps: list[str]) -> None:
    """Against all choices, priced one by one."""
    nodes, at = [], "x"
    for number, step in enumerate(steps):
        made = f"t{number}"
        match step:
            case "conv":
                nodes.append(node("Conv", f"{at} w", made))
            case "tanh":
                nodes.append(node("Tanh", at, made))
            case "pool":
                nodes.append(node("AveragePool", at, made, kernel_shape=[1, 1]))
            case _:
                nodes += [node("Conv", f"{at} w", f"{made}c"), node("Tanh", at, f"{made}t")]
                nodes.append(node("Mul", f"{made}c {made}t", made))
        at = made
    nodes.append(node("Sigmoid", at, "y"))
    program = program_of(nodes, {"w": reals(8, 8, 1, 1)})
    costs = layouts._GatheredBytes(program, layouts._roots(program))
    costs.count()
    names = sorted(set(costs.root.values()))

    def total(last: set[str]) -> float:
        cost = sum(p for name, p in costs.plain.items() if name not in last)
        cost += sum(p for name, p in costs.last.items() if name in last)
        return cost + sum(p for (a, b), p in costs.apart.items() if (a in last) != (b in last))

    free = [name for name in names if costs.last.get(name) != float("inf")]
    free = [name for name in free if costs.choice(name)]
    assume(len(free) <= 10)
    tried = (
        {name for name, chosen in zip(free, choice, strict=True) if chosen}
        for choice in product((False, True), repeat=len(free))
    )
    best = min(map(total, tried))
    found = total(layouts._last(costs) & set(free))
    whole = layouts.UNIT * (len(names) + len(costs.apart))
    assert found == pytest.approx(best, abs=whole)


@pytest.mark.exhaustive
def test_a_layer_of_few_filters_between_plain_tensors_has_swapped_factors() -> None:
    """With bias, residual and clamp, whose pixels have no gaps either."""
    conv = node("Conv", "x w b", "a", pads=[1, 1, 1, 1])
    nodes = [conv, node("Add", "a z", "s"), node("Relu", "s", "y")]
    weights = {"w": reals(6, 32, 3, 3), "b": reals(6)}
    shapes = {"x": [2, 32, 20, 21], "z": [2, 6, 20, 21]}
    network = compile_network(
        model(nodes, shapes, {"y": None}, weights), "estimate", isa="portable", flags=QUICK
    )
    (schedule,) = network.schedules.values()
    assert schedule.has(Swap) and schedule.pack
    draw = np.random.default_rng(0)
    x, z = (draw.integers(-3, 4, shape).astype(np.float32) for shape in shapes.values())
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))).astype(np.float64)
    want = (
        z
        + weights["b"][:, None, None]
        + sum(
            np.einsum(
                "nchw,kc->nkhw", padded[:, :, r : r + 20, s : s + 21], weights["w"][:, :, r, s]
            )
            for r in range(3)
            for s in range(3)
        )
    )
    assert np.allclose(network({"x": x, "z": z})["y"], np.maximum(want, 0), atol=1e-3)
