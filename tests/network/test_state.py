"""Networks that keep state from run to run: exact integers, order of reads, errors, the cache."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polysci
from polysci.errors import SpecError, UnsupportedError
from polysci.export.selftest_data import make_selftest_data
from polysci.graph.builder import GraphBuilder
from polysci.graph.graph import Graph, Tensor
from polysci.network.compiled import Network
from polysci.program.stages import LoopStage, UpdateStage

ROWS, WIDTH = 6, 3
CACHE = Tensor("cache", (2, ROWS, WIDTH), "int64")
FIRST = np.arange(2 * ROWS * WIDTH).reshape(CACHE.shape)


class Draft:
    """A graph of a cache, one new row and its place."""

    def __init__(self) -> None:
        self.x, self.at = Tensor("x", (2, 1, WIDTH), "int64"), Tensor("at", (1,), "int64")
        known = {tensor.name: tensor for tensor in (CACHE, self.x, self.at)}
        self.graph = GraphBuilder(Graph("cached", (), (), (), {}, known))
        places = self.graph.reshape("at", (1, 1))
        names = ("cache", places, "x")
        self.new = self.graph.add("scatter_nd", names, CACHE.shape, "int64", axis=1)

    def add(self, op: str, *names: str, **attributes: Any) -> str:
        return self.graph.add(op, names, CACHE.shape, "int64", **attributes)

    def done(self, new: str, *outputs: str) -> Graph:
        graph = self.graph.to_graph((self.x, self.at, CACHE), (new, *outputs))
        return replace(graph, in_place={new: "cache"}, state={"cache": FIRST})


def run(network: Network, turns: int = 4, outputs: int = 1) -> None:
    """Compare runs with NumPy's: each reads what the last one left."""
    cache, random = FIRST.copy(), np.random.default_rng(0)
    for at in random.permutation(ROWS)[:turns]:
        x, old = random.integers(-9, 9, (2, 1, WIDTH)), cache.copy()
        cache[:, at] = x[:, 0]
        results = network({"x": x, "at": np.array([at])})
        assert np.array_equal(network.state["cache"], cache)
        for array, expected in zip(results.values(), (cache * 2, old * 3), strict=False):
            assert np.array_equal(array, expected)
        assert len(results) == outputs


def copies(network: Network) -> list[str]:
    """The loops that move the whole cache."""
    return [
        stage.name for stage in network.prepared.program.stages
        if isinstance(stage, LoopStage) and stage.name.startswith(("replace", "scatter"))
    ]  # fmt: skip


def doubled() -> Graph:
    draft = Draft()
    return draft.done(draft.new, draft.add("add", draft.new, draft.new))


def test_new_rows_alone_are_written() -> None:
    network = polysci.compile_network(doubled(), "estimate")
    assert [port.name for port in network.inputs] == ["x", "at"] and len(network.outputs) == 1
    updates = [its for its in network.prepared.program.stages if isinstance(its, UpdateStage)]
    assert [its.extents for its in updates] == [(2, 1, WIDTH)] and not copies(network)
    run(network)
    assert make_selftest_data(network).error == 0


def test_what_reads_old_elements_comes_first() -> None:
    """The graph reads them behind the new ones: still nothing is copied."""
    draft = Draft()
    new = draft.add("add", draft.new, draft.new)
    three = draft.graph.constant(np.array(3))
    old = draft.add("mul", "cache", three)
    network = polysci.compile_network(draft.done(draft.new, new, old), "estimate")
    assert not copies(network)
    run(network, outputs=2)


def test_what_needs_both_has_a_copy() -> None:
    draft = Draft()
    both = draft.add("sub", draft.new, "cache")
    network = polysci.compile_network(draft.done(draft.new, both), "estimate")
    assert copies(network)
    for at in (0, 5, 5):
        old = network.state["cache"]
        new = network({"x": np.full((2, 1, WIDTH), at), "at": np.array([at])})
        assert np.array_equal(next(iter(new.values())), network.state["cache"] - old)


@pytest.mark.parametrize("shifted", [False, True])
def test_parts_of_a_joined_tensor(shifted: bool) -> None:
    """Rows that stay where they are are not moved; a cache that moves on is."""
    draft = Draft()
    ends = [draft.graph.constant(np.array([n])) for n in ((1, ROWS) if shifted else (0, ROWS - 1))]
    axis = draft.graph.constant(np.array([1]))
    kept = draft.graph.add("slice", ("cache", *ends, axis), (2, ROWS - 1, WIDTH), "int64")
    new = draft.add("concat", kept, "x", axis=1)
    network = polysci.compile_network(draft.done(new, draft.add("add", new, new)), "estimate")
    cache = FIRST
    for turn in range(3):
        x = np.full((2, 1, WIDTH), turn)
        cache = np.concatenate([cache[:, 1:] if shifted else cache[:, :-1], x], 1)
        y = next(iter(network({"x": x, "at": np.array([0])}).values()))
        assert np.array_equal(y, 2 * cache) and np.array_equal(network.state["cache"], cache)
    updates = [its for its in network.prepared.program.stages if isinstance(its, UpdateStage)]
    assert len(updates) == 1 - shifted


def test_sequences_and_what_a_caller_does_with_state() -> None:
    network = polysci.compile_network(doubled(), "estimate")
    again = polysci.compile_network(doubled(), "estimate")  # of the cache, where there is one
    other = again.sequence()
    batch = {"x": np.zeros((2, 1, WIDTH), np.int64), "at": np.array([0])}
    bound = again.bind(batch, {port.name: np.empty(port.shape, np.int64) for port in again.outputs})
    bound()
    assert not again.state["cache"][:, 0].any() and np.array_equal(other.state["cache"], FIRST)
    again.reset()
    assert np.array_equal(again.state["cache"], FIRST)
    other.state["cache"] = -FIRST
    assert np.array_equal(next(iter(other(batch).values()))[:, 1:], -2 * FIRST[:, 1:])
    assert list(other.state) == ["cache"] and "int64" in repr(other.state)
    with pytest.raises(SpecError, match="'cash': no state; did you mean 'cache'"):
        network.state["cash"] = FIRST
    with pytest.raises(SpecError, match=r"cache: expected int64\[2, 6, 3\], got float64\[\]"):
        network.state["cache"] = 1.0
    network.runner.context()
    with pytest.raises(SpecError, match="a run of this sequence is under way"):
        network(batch)


def test_a_place_that_is_off_by_one_is_noticed() -> None:
    network = polysci.compile_network(doubled(), "estimate")
    wrong = network.sequence()
    for at in range(3):
        x = {"x": np.full((2, 1, WIDTH), 50), "at": np.array([at])}
        network(x)
        wrong({**x, "at": np.array([at + 1])})
    assert not np.array_equal(network.state["cache"], wrong.state["cache"])


def test_a_device_keeps_none() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA: cuda-bindings is not installed")
    with pytest.raises(UnsupportedError, match="it keeps state, as 'cache': only the host does"):
        polysci.compile_network(doubled(), "estimate", device="cuda:sm_80")


@pytest.mark.parametrize("old", [True, False])
def test_state_is_replaced_outside_of_branches(*, old: bool) -> None:
    """What one side of a choice reads is the old value, and both sides leave the new one."""
    x, sums = Tensor("x", (WIDTH,), "int64"), Tensor("sums", (WIDTH,), "int64")
    build = GraphBuilder(Graph("chosen", (), (), (), {}, {"x": x, "sums": sums}))
    new = build.add("add", ("sums", "x"), (WIDTH,), "int64")
    one = build.total(build.add("mul", ("sums" if old else "x", "x"), (WIDTH,), "int64"), [0])
    most = build.add("reduce_max", ("x", build.constant(np.array([0]))), (), "int64", keepdims=0)
    fits = build.add("less", (most, build.constant(np.array(5))), (), "bool")
    y = build.add("if", (fits, one, most), (), "int64")
    graph = replace(
        build.to_graph((x, sums), (new, y)), in_place={new: "sums"},
        state={"sums": np.arange(WIDTH)},
    )  # fmt: skip
    network, expected = polysci.compile_network(graph, "estimate"), np.arange(WIDTH)
    for at in (1, 9, 2, 9, 3):
        row = np.array([at, -at, at - 1])
        chosen = (row * (expected if old else row)).sum() if at < 5 else at
        assert network(row) == chosen
        expected = expected + row
        assert np.array_equal(network.state["sums"], expected)
