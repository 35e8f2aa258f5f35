"""Loops that share one: which do, which must not, and that they compute what they do apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

from polysci.graph.passes.table import simplify
from polysci.network.compiled import Network
from polysci.network.prepare import prepare
from polysci.program.passes.fusion import join_loops
from polysci.program.stages import JointLoops
from polysci.target.host import detect
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals

SHAPE = [33, 70]


def _joint(network: Network) -> list[set[str]]:
    stages = network.prepared.program.stages
    return [{*stage.outputs} for stage in stages if isinstance(stage, JointLoops)]


def _network(
    nodes: Sequence[onnx.NodeProto], outputs: str, shape: Sequence[int] = SHAPE, **options: int
) -> Network:
    names = dict.fromkeys(outputs.split())
    told = {"rows": np.array([0]), "columns": np.array([1]), "last": np.array([-1]),
            "first": np.array([-99])}  # fmt: skip
    return network_of(read(model(nodes, {"x": [*shape]}, names, told, 18)), **options)


def _integers(shape: Sequence[int] = SHAPE) -> np.ndarray:
    return np.random.default_rng(0).integers(-9, 10, shape).astype(np.float32)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", ["portable", "avx2"])
def test_elements(threads: int, isa: str) -> None:
    """The third reads the second in its own place."""
    nodes = [node("Relu", "x", "a"), node("Mul", "x x", "b"), node("Add", "b x", "c")]
    network = _network(nodes, "a b c", threads=threads, isa=isa)
    assert _joint(network) == [{"a", "b", "c"}]
    x = _integers()
    made = network(x)
    for name, value in (("a", np.maximum(x, 0)), ("b", x * x), ("c", x * x + x)):
        np.testing.assert_array_equal(made[name], value)


@pytest.mark.sampled(every=10)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(33, 70), (5, 7), (300, 1), (64, 129)])
def test_reductions(threads: int, axis: int, shape: tuple[int, int]) -> None:
    along = ("rows", "columns")[axis]
    nodes = [node("ReduceSum", f"x {along}", "a"), node("ReduceMax", f"x {along}", "b"),
             node("ReduceSumSquare", f"x {along}", "c")]  # fmt: skip
    network = _network(nodes, "a b c", shape, threads=threads)
    assert _joint(network) == [{"a", "b", "c"}]
    x = _integers(shape)
    made = network(x)
    np.testing.assert_array_equal(made["a"], x.sum(axis, keepdims=True))
    np.testing.assert_array_equal(made["b"], x.max(axis, keepdims=True))
    np.testing.assert_array_equal(made["c"], (x * x).sum(axis, keepdims=True))


def test_long_sums_share_their_parts() -> None:
    nodes = [node("ReduceSum", "x rows", "a"), node("ReduceSumSquare", "x rows", "c")]
    network = _network(nodes, "a c", (5000, 12), threads=2)
    assert {"a.parts", "c.parts"} in _joint(network)
    x = _integers((5000, 12))
    made = network(x)
    np.testing.assert_array_equal(made["a"], x.sum(0, keepdims=True))
    np.testing.assert_array_equal(made["c"], (x * x).sum(0, keepdims=True))


APART = {
    "other places": (
        [node("Relu", "x", "a"), node("Slice", "a last first columns last", "r"),
         node("Add", "r x", "c")],
        lambda x: np.maximum(x, 0)[:, ::-1] + x,
    ),
    "other axes": (
        [node("ReduceSum", "x columns", "a"), node("ReduceSum", "x rows", "c")],
        lambda x: x.sum(0, keepdims=True),
    ),
    "one needs the whole of the other": (
        [node("ReduceMax", "x columns", "a"), node("Sub", "x a", "s"),
         node("ReduceSum", "s columns", "c")],
        lambda x: (x - x.max(1, keepdims=True)).sum(1, keepdims=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", APART)
def test_what_stays_apart(case: str) -> None:
    nodes, expected = APART[case]
    network, x = _network(nodes, "a c"), _integers()
    assert not _joint(network)
    np.testing.assert_array_equal(network(x)["c"], expected(x))


@pytest.mark.exhaustive
def test_a_stage_between_keeps_loops_apart() -> None:
    """The loop of c needs the product, which needs a: neither can move to the other."""
    weights = {"w": np.eye(70, dtype=np.float32)}
    nodes = [node("Relu", "x", "a"), node("MatMul", "a w", "m"), node("Mul", "m x", "c"),
             node("Mul", "x x", "d")]  # fmt: skip
    proto = model(nodes, {"x": SHAPE}, dict.fromkeys("acd"), weights)
    network, x = network_of(read(proto)), _integers()
    assert all(not {"a", "c"} <= names for names in _joint(network))
    made = network(x)
    np.testing.assert_array_equal(made["c"], np.maximum(x, 0) * x)
    np.testing.assert_array_equal(made["d"], x * x)


@pytest.mark.parametrize(("early", "late"), [(40, 400), (400, 40)])
def test_a_loop_far_away_stays_where_memory_is_short(early: int, late: int) -> None:
    """What it makes would wait beside the widest rows of all, if these come first."""
    nodes = [
        node("Relu", "x", "a"), node("MatMul", "a wide", "b"), node("MatMul", "b narrow", "c"),
        node("Exp", "x", "d"), node("MatMul", "d other", "e"), node("Add", "c e", "f"),
        node("MatMul", "f last", "g"), node("MatMul", "g end", "y"),
    ]  # fmt: skip
    weights = {"wide": reals(70, early), "narrow": reals(early, 9), "other": reals(70, 9),
               "last": reals(9, late), "end": reals(late, 9)}  # fmt: skip
    graph = simplify(read(model(nodes, {"x": [*SHAPE]}, {"y": None}, weights)))
    stages = prepare(graph, target=detect("portable")).placed
    joint = [it for it in join_loops(stages)[0].program.stages if isinstance(it, JointLoops)]
    assert [{*its.outputs} for its in joint] == ([{"a", "d"}] if early < late else [])
