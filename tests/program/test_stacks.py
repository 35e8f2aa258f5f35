"""Stacks of products: one for each place of some axes, which threads share."""

from __future__ import annotations

import numpy as np
import pytest

from polysci.ops.matmul import Matmul
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals
from tests.support.rates import set_coefficients


@pytest.fixture(autouse=True)
def free_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share work however small."""
    set_coefficients(monkeypatch, barrier_us=0.0, team_us=0.0, wake_us=0.0)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("count", "threads", "split"),
    [(2, 2, True), (3, 2, False), (19, 2, True), (500, 2, True), (6, 3, True), (7, 3, False)],
)
def test_threads_share_products_of_nearly_equal_parts(
    count: int, threads: int, split: bool
) -> None:
    a, b = reals(count, 9, 20, seed=1), reals(count, 20, 17, seed=2)
    nodes = [node("MatMul", "a b", "p"), node("Relu", "p", "r"), node("MatMul", "r c", "y")]
    ports = {"a": a.shape, "b": b.shape, "c": (count, 17, 5)}
    graph = read(model(nodes, ports, {"y": None}))
    inputs = {"a": a, "b": b, "c": reals(count, 17, 5, seed=3)}
    several, alone = (network_of(graph, number) for number in (threads, 1))
    source = several.code.files["small.c"]
    assert (f"({count} * thread + {count}) / {threads}" in source) == split
    exact = np.maximum(a.astype(np.float64) @ b, 0) @ inputs["c"]
    for _ in range(20):  # threads must not use each other's packed weights
        y = several(inputs)["y"]
        assert np.array_equal(y, alone(inputs)["y"])
    assert np.abs(y - exact).max() < 1e-4


def test_small_stacks_stay_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    set_coefficients(monkeypatch, barrier_us=50.0)
    ports = {"a": (4, 2, 3), "b": (4, 3, 2)}
    network = network_of(read(model([node("MatMul", "a b", "y")], ports, {"y": None})), 2)
    assert "thread + 1" not in network.code.files["small.c"]


@pytest.mark.sampled
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 5])
def test_few_rows_read_both_factors_where_they_lie(rows: int, turned: bool) -> None:
    a, b = reals(3, rows, 21, seed=1), reals(3, *((37, 21) if turned else (21, 37)), seed=2)
    turn = [node("Transpose", "b", "c", perm=[0, 2, 1])] * turned
    nodes = [*turn, node("MatMul", "a " + "bc"[turned], "y")]
    network = network_of(read(model(nodes, {"a": a.shape, "b": b.shape}, {"y": None})))
    (layer,) = network.code.placed.program.layers()
    assert isinstance(layer.problem, Matmul) == (rows <= 4)
    exact = a.astype(np.float64) @ (b.transpose(0, 2, 1) if turned else b)
    assert np.abs(network({"a": a, "b": b})["y"] - exact).max() < 1e-5
