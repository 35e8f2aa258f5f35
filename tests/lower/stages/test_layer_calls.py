"""Calls of layers in networks: an operand for every parameter, whoever starts the threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest

from polysci.graph.passes.table import simplify
from polysci.loop_ir.interface import function
from polysci.loop_ir.nodes import Invoke, LoopFunction, LoopModule, Member, walk_statements
from polysci.network.code import Code
from polysci.network.compiled import plan_network
from polysci.network.options import PlanOptions
from polysci.network.prepare import generate_code, prepare
from polysci.numerics.dtypes import PRECISIONS
from polysci.printers.network import OPENMP, POOLS
from polysci.target.host import detect
from tests.program.passes.test_row_fusion import inverted_bottleneck
from tests.support.networks import read
from tests.support.onnxmodels import model, node
from tests.support.rates import fuse_rows_everywhere

THREADS = 2


def stack() -> onnx.ModelProto:
    """Products whose factors are both computed: four of them, then one."""
    nodes = [
        node("Tanh", "x", "a"), node("Transpose", "a", "b", perm=[0, 2, 1]),
        node("MatMul", "a b", "c"), node("ReduceSum", "c axes", "d", keepdims=0),
        node("MatMul", "d d", "e"), node("Relu", "e", "y"),
    ]  # fmt: skip
    return model(nodes, {"x": [4, 48, 40]}, {"y": None}, {"axes": np.array([0])})


def quantised() -> onnx.ModelProto:
    """A convolution of 8 bits with scales."""
    nodes = [
        node("QLinearConv", "q s z w ws wz s z", "c", pads=[1, 1, 1, 1]),
        node("DequantizeLinear", "c s z", "y"), node("QuantizeLinear", "x s z", "q"),
    ]  # fmt: skip
    weights = {
        "s": np.float32(0.1), "z": np.uint8(7), "ws": np.float32(0.2), "wz": np.int8(0),
        "w": np.arange(8 * 4 * 9, dtype=np.int8).reshape(8, 4, 3, 3) % 5,
    }  # fmt: skip
    return model([nodes[2], *nodes[:2]], {"x": [1, 4, 9, 9]}, {"y": None}, weights)


def code_of(case: str, pool: str) -> Code:
    target = detect("portable")
    graph = (
        inverted_bottleneck(21, 1) if case == "rows"
        else simplify(read(stack() if case == "stack" else quantised()))
    )  # fmt: skip
    options = PlanOptions("estimate", THREADS, "f32", "direct", target)
    planned = plan_network(prepare(graph, target=target), options, "small")
    placed = planned.prepared.placed
    return generate_code(placed, planned.schedules, "small", options, pool=pool)


def calls(module: LoopModule) -> Iterator[tuple[Invoke, LoopFunction]]:
    """All calls of functions of the module."""
    functions = module.functions
    for caller in functions.values():
        for part in walk_statements(caller.body):
            if isinstance(part, Invoke) and part.function in functions:
                yield part, functions[part.function]


@pytest.mark.sampled
@pytest.mark.parametrize("pool", [OPENMP, *POOLS])
@pytest.mark.parametrize("case", ["rows", "stack", "quantised"])
def test_every_parameter_has_its_operand(
    case: str, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuse_rows_everywhere(monkeypatch)
    code, teams = code_of(case, pool), 0
    assert any(call.source.by_rows for call in code.calls.values()) == (case != "quantised")
    for call, callee in calls(code.module):
        names = [parameter.name for parameter in callee.parameters]
        assert len(call.operands) == len(names), call
        if "team" in names:
            assert call.operands[names.index("team")] == Member("m", "team", pointed=True)
            teams += 1
    layers = [call for call in code.calls.values() if not call.source.by_rows]
    assert teams == (len(layers) if pool != OPENMP else 0)


def test_a_parameter_without_operand() -> None:
    run = function("run", PRECISIONS["f32"])
    operands = {name: 0 for name in run.names if name != "bias"}
    with pytest.raises(ValueError, match="small: no operand for bias"):
        run.invoke("small", operands)
    assert run.invoke("small", {**operands, "bias": 0, "team": 0}).operands == (0,) * len(run.names)
