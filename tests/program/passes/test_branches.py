"""If of a condition that is data: the branch that is taken runs, in one and several threads."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from polysci.cost.networks import StageCosts
from polysci.network.debug import compare_tensors
from polysci.program.control import BranchStage
from polysci.program.passes import thread_shares
from polysci.program.stages import LayerStage
from polysci.target.coefficients import prior_of
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals

SHAPE = (1, 8, 12, 12)
CONV = {"pads": [1, 1, 1, 1]}
FEW = int(prior_of("branch_elements"))


def body(
    nodes: list[onnx.NodeProto], results: list[str], weights: dict[str, np.ndarray] | None = None
) -> onnx.GraphProto:
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results]
    arrays = [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    return helper.make_graph(nodes, "body", [], outputs, arrays)


def choice(condition: str, outputs: str, then: onnx.GraphProto, other: onnx.GraphProto):  # type: ignore[no-untyped-def]
    return node("If", condition, outputs, then_branch=then, else_branch=other)


def nested() -> onnx.ModelProto:
    """Convolutions in three branches, two of them inside another; two results."""
    inner = choice(
        "low", "i",
        body([node("Conv", "a w3", "p", **CONV)], ["p"], {"w3": reals(8, 8, 3, 3, seed=3)}),
        body([node("AveragePool", "a", "q", kernel_shape=[3, 3], **CONV),
              node("Softmax", "q", "s")], ["s"]),
    )  # fmt: skip
    then = body(
        [node("Conv", "a w1", "c", **CONV), node("Relu", "c", "r"),
         node("Conv", "r w2", "t", **CONV), node("Sigmoid", "b", "u")], ["t", "u"],
        {"w1": reals(8, 8, 3, 3, seed=1), "w2": reals(8, 8, 3, 3, seed=2)},
    )  # fmt: skip
    other = body([inner, node("Add", "i a", "e"), node("MatMul", "b wm", "f")], ["e", "f"],
                 {"wm": reals(16, 16, seed=4)})  # fmt: skip
    nodes = [
        node("Conv", "x w0", "h", **CONV), node("Relu", "h", "a"), node("Exp", "v", "b"),
        node("ReduceMean", "x", "m", keepdims=0), node("Greater", "m zero", "c"),
        node("Less", "m minus", "low"), choice("c", "o p", then, other),
        node("Conv", "o w4", "y", **CONV), node("Relu", "p", "z"),
    ]  # fmt: skip
    return model(nodes, {"x": SHAPE, "v": [4, 16]}, {"y": None, "z": None}, {
        "w0": reals(8, 8, 3, 3), "w4": reals(8, 8, 3, 3, seed=5), "zero": np.float32(0),
        "minus": np.float32(-1),
    })  # fmt: skip


def inputs(shift: float, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {"x": (random.normal(size=SHAPE) + shift).astype(np.float32),
            "v": random.normal(size=(4, 16)).astype(np.float32)}  # fmt: skip


def differ(made: onnx.ModelProto, network: object, feeds: dict[str, np.ndarray]) -> float:
    """The largest difference from ONNX's reference, over the largest number."""
    wanted = ReferenceEvaluator(made).run(None, feeds)
    results = network(feeds)  # type: ignore[operator]
    outputs = [results[tensor.name] for tensor in made.graph.output]
    return max(
        float(np.abs(result - expected).max() / max(1, np.abs(expected).max()))
        for result, expected in zip(outputs, wanted, strict=True)
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fuse", [True, False])
def test_every_way_through(threads: int, fuse: bool) -> None:
    made = nested()
    network = network_of(read(made), threads, fuse=fuse)
    for shift in (0.5, -0.5, -2.0, 0.5):
        assert differ(made, network, inputs(shift)) < 1e-5
    parts = [s.part for s in network.code.placed.program.stages if isinstance(s, BranchStage)]
    assert parts == ["if", "else", "if", "else", "end", "end"]


def test_what_only_one_branch_needs_runs_there() -> None:
    stages = network_of(read(nested())).code.placed.program.stages
    depths, depth = [], 0
    for stage in stages:
        if isinstance(stage, BranchStage):
            depth += {"if": 1, "else": 0, "end": -1}[stage.part]
        elif isinstance(stage, LayerStage):
            depths.append(depth)
    assert depths == [0, 1, 1, 2, 1, 0]


@pytest.mark.exhaustive
def test_every_tensor_of_the_branch_that_ran_is_checked() -> None:
    network = network_of(read(nested()), apart=True)
    counts = []
    for shift in (0.5, -0.5, -2.0):
        rows = compare_tensors(network, inputs(shift))
        assert not [row for row in rows if row.wrong]
        counts.append(len(rows))
    assert len(set(counts)) > 1


@pytest.mark.parametrize(("rows", "branches"), [(FEW // 2, 0), (FEW // 2 + 1, 3)])
def test_few_elements_are_selected(rows: int, branches: int) -> None:
    then, other = body([node("Relu", "x", "a")], ["a"]), body([node("Tanh", "x", "a")], ["a"])
    nodes = [node("ReduceMean", "x", "m", keepdims=0), node("Greater", "m zero", "c"),
             choice("c", "y", then, other)]  # fmt: skip
    made = model(nodes, {"x": [rows]}, {"y": None}, {"zero": np.float32(0)})
    network = network_of(read(made), 2)
    stages = network.code.placed.program.stages
    assert sum(isinstance(stage, BranchStage) for stage in stages) == branches
    for sign in (1, -1):
        x = sign * np.random.default_rng(0).uniform(0, 1, rows).astype(np.float32)
        assert differ(made, network, {"x": x}) < 1e-5


@pytest.mark.exhaustive
def test_what_both_need_is_computed_before() -> None:
    """So are outputs; a copy of x for a layer is made on each side that needs one."""
    weights = {"w": reals(8, 8, 3, 3), "zero": np.float32(0)}
    then = body([node("Conv", "t w", "a", **CONV)], ["a"])
    other = body([node("MaxPool", "t", "b", kernel_shape=[3, 3], **CONV),
                  node("Conv", "b w", "a", **CONV)], ["a"])  # fmt: skip
    nodes = [
        node("Tanh", "x", "t"), node("ReduceMean", "x", "m", keepdims=0),
        node("Greater", "m zero", "c"), choice("c", "u", then, other),
        node("Conv", "t w", "z", **CONV), node("Add", "u z", "y"),
    ]  # fmt: skip
    made = model(nodes, {"x": SHAPE}, {"y": None, "t": None}, weights)
    network = network_of(read(made), 2)
    for shift in (0.5, -0.5):
        assert differ(made, network, {"x": inputs(shift)["x"]}) < 1e-5


def test_lengths_that_data_decides_in_both_branches() -> None:
    then = body([node("Compress", "x c", "a", axis=0)], ["a"])
    other = body([node("Compress", "x d", "a", axis=0)], ["a"])
    nodes = [
        node("ReduceMax", "x", "m", axes=[1], keepdims=0), node("Greater", "m zero", "c"),
        node("Not", "c", "d"), node("ReduceMean", "x", "n", keepdims=0),
        node("Greater", "n zero", "e"), choice("e", "y", then, other),
    ]  # fmt: skip
    made = model(nodes, {"x": [6, 3]}, {"y": None}, {"zero": np.float32(0.5)})
    network = network_of(read(made))
    for shift in (0.0, 1.0):
        x = np.random.default_rng(1).uniform(-1, 1, (6, 3)).astype(np.float32) + np.float32(shift)
        assert network({"x": x})["y"].shape == ReferenceEvaluator(made).run(None, {"x": x})[0].shape
        assert differ(made, network, {"x": x}) == 0


def test_all_threads_take_the_same_branch() -> None:
    """Whatever the first thread computes alone, it does not branch alone."""
    program = network_of(read(nested())).code.placed.program
    target = detect("portable")
    costs = StageCosts(replace(assume_rates(target), peak=0.5), target)
    shares = thread_shares.share_stages(program, 2, costs)
    branches = {at for at, s in enumerate(program.stages) if isinstance(s, BranchStage)}
    assert shares.alone and not branches & shares.alone
