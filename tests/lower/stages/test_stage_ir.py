"""Stages as loop IR, run by the interpreter in several orders, against the reference of graphs."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from polysci import notation
from polysci.frontends.notation.elaborate import elaborate
from polysci.frontends.notation.graphs import graph_of_comprehension
from polysci.frontends.notation.parser import parse
from polysci.frontends.onnx import reference
from polysci.graph.graph import Graph
from polysci.loop_ir.memory import MemoryFaultError
from polysci.loop_ir.nodes import Barrier, For, LoopKind, LoopStatement, Store, walk_statements
from tests.frontends.onnx.test_loops import GOES_ON, looped
from tests.support.interpreted import InterpretedNetwork
from tests.support.networks import read
from tests.support.onnxmodels import model, node, reals
from tests.support.random_programs import OPERANDS, random_program

Y = {"y": None}
MATRIX, IMAGE = {"x": [6, 20]}, {"x": [1, 3, 7, 8]}
F = TensorProto.FLOAT


def branches() -> onnx.ModelProto:
    """A result by a condition that is data."""
    sides = [
        helper.make_graph(
            [node(op, "a", name)], "body", [],
            [helper.make_tensor_value_info(name, F, None)],
        )
        for op, name in (("Tanh", "t"), ("Exp", "u"))
    ]  # fmt: skip
    nodes = [
        node("Neg", "x", "a"), node("ReduceMean", "x", "m", keepdims=0),
        node("Greater", "m zero", "c"), node("If", "c", "o", then_branch=sides[0],
                                             else_branch=sides[1]), node("Abs", "o", "y"),
    ]  # fmt: skip
    return model(nodes, MATRIX, Y, {"zero": np.float32(0)})


def steps() -> onnx.ModelProto:
    """Steps that stack results and hand a state on, each of which reads its neighbours."""
    body = [
        node("Transpose", "s", "t", perm=[1, 0]), node("Mul", "t w", "p"), node("Add", "p x", "q"),
        node("Softmax", "q", "s2", axis=0), node("Neg", "s2", "z"), GOES_ON,
    ]  # fmt: skip
    return looped(body, {"s": (F, [5, 5])}, ["z"], {"x": (F, [5, 5])}, "n yes x", "y all",
                  {"n": np.int64(3), "w": reals(5, 5)})  # fmt: skip


CASES = {
    "elements": model([node("Tanh", "x", "a"), node("Mul", "a v", "y")], MATRIX, Y,
                      {"v": reals(6, 1)}),
    "columns": model([node("ReduceSum", "x a", "y")], {"x": [9, 24]}, Y, {"a": np.array([0])}),
    "windows": model([node("MaxPool", "x", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1],
                           strides=[2, 2])], IMAGE, Y),
    "lanes": model([node("ReduceSum", "x a", "s"), node("Exp", "s", "y")], {"x": [2, 531]}, Y,
                   {"a": np.array([1])}),
    "parts in double": model([node("ReduceSum", "x", "y", keepdims=0)], {"x": [4500]}, Y),
    "places": model([node("ArgMax", "x", "p", axis=1), node("Cast", "p", "y", to=1)], MATRIX, Y),
    "norm": model([node("Softmax", "x", "s", axis=1), node("Add", "s x", "y")], MATRIX, Y),
    "mean": model([node("ReduceMean", "x", "m", axes=[0]), node("Sub", "x m", "y")], MATRIX, Y),
    "transposition": model([node("Transpose", "x", "y", perm=[1, 0])], {"x": [70, 65]}, Y),
    "tables": model([node("Resize", "x - s", "y", mode="linear")], IMAGE, Y,
                    {"s": np.float32([1, 1, 2, 1.5])}),
    "subscripts": model([node("Gather", "x at", "g", axis=0), node("Neg", "g", "y")], MATRIX, Y,
                        {"at": np.array([5, -1, 2])}),
    "updates": model([node("ScatterElements", "x at u", "y", reduction="add")], MATRIX, Y,
                     {"at": np.array([[1, 5], [-1, 5]]), "u": reals(2, 2)}, opset=18),
    "joined": model([node("Tanh", "x", "a"), node("Concat", "a x", "c", axis=1),
                     node("Softmax", "c", "y", axis=0)], MATRIX, Y),
    "branches": branches(),
    "steps": steps(),
}  # fmt: skip


def inputs_of(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {tensor.name: rng.uniform(-1, 1, tensor.shape).astype(tensor.dtype)
            for tensor in graph.inputs}  # fmt: skip


def agree(graph: Graph, threads: int, seed: int = 0) -> None:
    """The results of the interpreted network are the reference's."""
    inputs = inputs_of(graph, seed)
    expected = reference.run(graph, inputs)
    for name, result in InterpretedNetwork.of(graph, threads).run(inputs, seed).items():
        scale = max(1.0, float(np.abs(expected[name]).max(initial=0)))
        np.testing.assert_allclose(result, expected[name], rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_stage(name: str, threads: int) -> None:
    for seed in range(2):
        agree(read(CASES[name]), threads, seed)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int) -> None:
    """In two threads, and in one, against the interpreter of the notation."""
    text, rng = random_program(Random(seed)), np.random.default_rng(seed)
    inputs = {name: rng.uniform(-1, 1, shape) for name, shape in OPERANDS.items()}
    graph, _ = graph_of_comprehension(elaborate(parse(text)), {})
    expected = notation.interpret(text, inputs)["Z"]
    for threads in (1, 2):
        result = InterpretedNetwork.of(graph, threads).run(inputs, seed)["Z"]
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


def first_barrier(network: InterpretedNetwork) -> Barrier:
    return next(
        part
        for function in network.module.functions.values()
        for part in walk_statements(function.body)
        if isinstance(part, Barrier)
    )


@pytest.mark.parametrize("name", ["mean", "joined", "branches"])
def test_a_missing_barrier_is_a_race(name: str) -> None:
    graph = read(CASES[name])
    network = InterpretedNetwork.of(graph, 3)
    assert first_barrier(network)
    wrong = network.change(lambda part: None if isinstance(part, Barrier) else part)
    for seed in range(3):
        with pytest.raises(MemoryFaultError, match=r"two threads|before anything wrote"):
            wrong.run(inputs_of(graph), seed)


@pytest.mark.parametrize("name", ["elements", "columns", "windows", "lanes", "updates"])
def test_a_wrong_index_is_seen(name: str) -> None:
    """What is written one element further leaves the first one without a value, or leaves y."""
    graph = read(CASES[name])

    def shift(part: LoopStatement) -> LoopStatement:
        return replace(part, at=part.at + 1) if isinstance(part, Store) and part.buffer == "y" \
            else part  # fmt: skip

    network = InterpretedNetwork.of(graph, 2)
    with pytest.raises(
        (MemoryFaultError, AssertionError), match=r"outside|without values|wrote it"
    ):
        network.change(shift).run(inputs_of(graph))


def test_a_loop_that_threads_may_not_share() -> None:
    """All threads write the elements of a sum that goes along a loop that they share."""
    graph = read(CASES["updates"])

    def share(part: LoopStatement) -> LoopStatement:
        serial = isinstance(part, For) and part.kind is LoopKind.SERIAL
        return replace(part, kind=LoopKind.PARALLEL) if serial else part

    with pytest.raises(MemoryFaultError, match=r"two threads"):
        InterpretedNetwork.of(graph, 3).change(share).run(inputs_of(graph))
