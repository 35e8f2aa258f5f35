"""Loop and Scan as loops in C, some of which data ends, against ONNX's reference."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from polysci.errors import UnsupportedError
from polysci.graph.graph import LOOP_BEGIN
from polysci.network.debug import compare_tensors
from polysci.program.stages import LayerStage, RepeatStage
from tests.support.networks import network_of, read
from tests.support.onnxmodels import node, reals

F, L, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Tensors = dict[str, tuple[int, list[int]]]
GOES_ON = node("Identity", "on", "on2")
CONV = {"pads": [1, 1, 1, 1]}


def graph(
    nodes: list[onnx.NodeProto], inputs: Tensors, outputs: dict[str, int], weights: dict[str, Any]
) -> onnx.GraphProto:
    return helper.make_graph(
        nodes, "graph",
        [helper.make_tensor_value_info(name, *told) for name, told in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )  # fmt: skip


def looped(
    body: list[onnx.NodeProto], states: Tensors, stacked: list[str], inputs: Tensors,
    words: str, outputs: str, weights: dict[str, Any], behind: tuple[onnx.NodeProto, ...] = (),
) -> onnx.ModelProto:  # fmt: skip
    """A Loop of inputs ``words``; a state ``s`` becomes ``s2``."""
    inner = graph(body, {"i": (L, []), "on": (B, []), **states},
                  {"on2": B, **{f"{name}2": kind for name, (kind, _) in states.items()},
                   **dict.fromkeys(stacked, F)}, {})  # fmt: skip
    nodes = [node("Loop", words, outputs, body=inner), *behind]
    names = [name for part in nodes for name in part.output]
    made = graph(nodes, inputs, dict.fromkeys(names, F), {**weights, "yes": True})
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def agree(made: onnx.ModelProto, feeds: dict[str, Any], threads: int = 1) -> Any:
    """The network, whose results are those of ONNX's reference."""
    feeds = {name: np.asarray(value) for name, value in feeds.items()}
    network = network_of(read(made), threads)
    wanted = ReferenceEvaluator(made).run(None, feeds)
    for result, expected in zip(network(feeds).values(), wanted, strict=True):
        assert result.size == np.size(expected)  # the reference joins what it shall stack
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        assert np.abs(result - expected.reshape(result.shape)).max(initial=0) < 1e-4 * scale
    return network


def steps_of(network: Any) -> RepeatStage:
    (stage,) = [s for s in network.code.placed.program.stages if isinstance(s, RepeatStage)]
    return stage


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [1, 2])
def test_a_constant_number_of_steps(threads: int) -> None:
    """A product, the number of the step, a product that is the same in all steps."""
    body = [
        node("MatMul", "s w", "p"), node("MatMul", "x w", "q"), node("Add", "p q", "r"),
        node("Tanh", "r", "s2"), node("Cast", "i", "f", to=1), node("Mul", "s2 f", "z"), GOES_ON,
    ]  # fmt: skip
    made = looped(body, {"s": (F, [4, 8])}, ["z"], {"x": (F, [4, 8])}, "n yes x", "y all",
                  {"n": np.int64(7), "w": 0.3 * reals(8, 8)})  # fmt: skip
    stage = steps_of(agree(made, {"x": reals(4, 8, seed=1)}, threads))
    assert stage.count == 7 and not stage.breaks
    assert sum(isinstance(member, LayerStage) for member in stage.members) == 1


COUNTS = [(50, 1e9), (50, 20.0), (6, -1e9)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_data_ends_it(threads: int) -> None:
    """Results that are stacked are as many as there were steps."""
    body = [
        node("Mul", "s grow", "p"), node("Add", "p x", "s2"),
        node("ReduceMax", "s2", "m", keepdims=0), node("Less", "m limit", "on2"),
        node("Identity", "s2", "z"),
    ]  # fmt: skip
    for most, limit in COUNTS:
        made = looped(
            body, {"s": (F, [3, 5])}, ["z"], {"x": (F, [3, 5]), "limit": (F, [])}, "n yes x",
            "last all", {"n": np.int64(most), "grow": np.float32(1.02)},
            behind=(node("Tanh", "all", "t"), node("ReduceSum", "all", "sum", keepdims=0)),
        )  # fmt: skip
        agree(made, {"x": np.abs(reals(3, 5)) + 0.1, "limit": np.float32(limit)}, threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_steps_and_whether_it_begins_are_data(threads: int) -> None:
    body = [
        node("Mul", "s grow", "s2"), node("ReduceMax", "s2", "m", keepdims=0),
        node("Less", "m limit", "on2"),
    ]  # fmt: skip
    inputs = {"x": (F, [600, 16]), "limit": (F, []), "n": (L, []), "go": (B, [])}
    made = looped(body, {"s": (F, [600, 16])}, [], inputs, "n go x", "y",
                  {"grow": np.float32(1.5)})  # fmt: skip
    network = agree(
        made, {"x": reals(600, 16), "limit": np.float32(99), "n": 5, "go": True}, threads
    )
    assert steps_of(network).breaks
    x = reals(600, 16)
    for count, begins, limit, steps in ((0, True, 9, 0), (9, False, 9, 0), (9, True, -9, 1),
                                        (1 << 60, True, 30, None)):  # fmt: skip
        feeds = {
            "x": x,
            "limit": np.array(limit, np.float32),
            "n": np.array(count),
            "go": np.array(begins),
        }
        expected, most = x, 0
        while most < count and begins and (not most or expected.max() < limit):
            expected, most = expected * np.float32(1.5), most + 1
        assert steps is None or most == steps
        np.testing.assert_allclose(network(feeds)["y"], expected, rtol=1e-5)


def test_states_that_change_places() -> None:
    body = [node("Add", "a b", "b2"), node("Identity", "b", "a2"), GOES_ON]
    made = looped(body, {"a": (F, [3]), "b": (F, [3])}, [], {"x": (F, [3])}, "n yes x x", "y z",
                  {"n": np.int64(9)})  # fmt: skip
    agree(made, {"x": reals(3)}, 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_branches_inside(threads: int) -> None:
    then = graph([node("Conv", "s w", "t", **CONV)], {}, {"t": F}, {"w": 0.2 * reals(8, 8, 3, 3)})
    other = graph([node("Conv", "s w", "u", **CONV), node("Relu", "u", "v")], {}, {"v": F},
                  {"w": 0.2 * reals(8, 8, 3, 3, seed=1)})  # fmt: skip
    body = [
        node("Gather", "flags i", "f", axis=0), node("Greater", "f zero", "c"),
        node("If", "c", "h", then_branch=then, else_branch=other), node("Add", "h s", "s2"),
        node("GlobalAveragePool", "s2", "z"), GOES_ON,
    ]  # fmt: skip
    made = looped(body, {"s": (F, [1, 8, 10, 10])}, ["z"],
                  {"x": (F, [1, 8, 10, 10]), "flags": (F, [9])}, "n yes x", "y all",
                  {"n": np.int64(9), "zero": np.float32(0)})  # fmt: skip
    agree(made, {"x": reals(1, 8, 10, 10), "flags": reals(9)}, threads)


def test_no_step() -> None:
    body = [node("Mul", "s x", "s2"), node("Less", "s2 x", "on2"), node("Exp", "s2", "z")]
    made = looped(body, {"s": (F, [1])}, ["z"], {"x": (F, [1]), "go": (B, [])}, "n go x", "y all",
                  {"n": np.int64(8)})  # fmt: skip
    x = reals(1)
    results = network_of(read(made))({"x": x, "go": np.array(False)})
    assert results["y"] == x and results["all"].shape == (0, 1)


def test_tensors_are_checked() -> None:
    body = [node("Mul", "s x", "s2"), node("Exp", "s2", "z"), GOES_ON]
    made = looped(body, {"s": (F, [3])}, ["z"], {"x": (F, [3])}, "n yes x", "y all",
                  {"n": np.int64(8)})  # fmt: skip
    rows = compare_tensors(network_of(read(made), apart=True), {"x": reals(3)})
    assert {"y", "all"} <= {row.tensor for row in rows} and not any(row.wrong for row in rows)


def test_shapes_that_change_are_written_out() -> None:
    body = [node("Concat", "s x", "s2", axis=0), GOES_ON]
    made = looped(body, {"s": (F, [])}, [], {"x": (F, [2])}, "n yes x", "y", {"n": np.int64(6)})
    made.graph.node[0].attribute[0].g.input[2].type.tensor_type.ClearField("shape")
    assert not any(part.op == LOOP_BEGIN for part in read(made).nodes)
    agree(made, {"x": reals(2)})
    del made.graph.initializer[0]
    made.graph.input.append(helper.make_tensor_value_info("n", L, []))
    with pytest.raises(UnsupportedError, match=r"of float32\[2\] becomes float32\[4\].*n=V"):
        read(made)
