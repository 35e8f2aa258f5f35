"""Outputs that take the memory of inputs: updated once nothing reads the old values any more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from polysci.network.compiled import Network
from polysci.program.stages import JointLoops
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node


def _step(proto: onnx.ModelProto, in_place: dict[str, str], threads: int = 1) -> Network:
    return network_of(replace(read(proto), in_place=in_place), threads)


def _run(network: Network, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs that are replaced are read from the arrays of their outputs."""
    in_place = network.prepared.program.in_place
    program, runner = network.prepared.program, network.runner
    titles = dict(zip(program.outputs, program.titles, strict=True))
    state = {titles[name]: replaced for name, replaced in in_place.items()}
    results = {
        port.name: values[state[port.name]].copy() if port.name in state
        else np.zeros(port.shape, port.dtype)
        for port in runner.outputs
    }  # fmt: skip
    arrays = [values[port.name] for port in runner.inputs]
    runner.bind(runner.context(), arrays, [results[port.name] for port in runner.outputs])()
    return results


STEP = model(
    [
        node("MatMul", "x w", "y"), node("Mul", "m beta", "decayed"),
        node("Add", "decayed g", "m1"), node("Mul", "m1 rate", "change"),
        node("Sub", "w change", "w1"), node("Transpose", "w", "turned", perm=[1, 0]),
        node("MatMul", "y turned", "back"),
    ],
    {"x": [5, 6], "w": [6, 4], "m": [6, 4], "g": [6, 4]},
    {"back": [5, 6], "m1": [6, 4], "w1": [6, 4]},
    {"beta": np.array(2, np.float32), "rate": np.array(3, np.float32)},
)  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_old_values_are_read_before_they_are_replaced(threads: int) -> None:
    network = _step(STEP, {"w1": "w", "m1": "m"}, threads)
    rng = np.random.default_rng(0)
    values = {
        port.name: rng.integers(-3, 4, port.shape).astype(np.float32)
        for port in read(STEP).inputs
    }  # fmt: skip
    made = _run(network, values)
    x, w, m, g = (values[name] for name in "xwmg")
    assert np.array_equal(made["m1"], 2 * m + g)
    assert np.array_equal(made["w1"], w - 3 * (2 * m + g))
    assert np.array_equal(made["back"], x @ w @ w.T)
    assert [port.name for port in network.inputs] == ["x", "g"]
    header = network.code.files["small.h"]
    assert "(w1): a run reads w here and replaces it" in header


def test_momentum_needs_no_copy() -> None:
    network = _step(STEP, {"m1": "m"})
    stages = network.prepared.program.stages
    assert not any(stage.name == "replace m" for stage in stages)
    (maker,) = [stage for stage in stages if "m1" in stage.outputs]
    assert isinstance(maker, JointLoops) and "m" in maker.inputs


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node("Transpose", "w", "w1", perm=[1, 0])], lambda w: w.T),
        ([node("Transpose", "w", "t", perm=[1, 0]), node("Add", "w t", "w1")], lambda w: w + w.T),
        ([node("ReduceSum", "w", "s"), node("Add", "w s", "w1")], lambda w: w + w.sum()),
        ([node("MatMul", "w w", "w1")], lambda w: w @ w),
        ([node("Relu", "w", "w1"), node("Add", "w w1", "y")], lambda w: np.maximum(w, 0)),
    ],
)  # fmt: skip
def test_other_reads_than_those_of_its_own_place(nodes: list, expected: object) -> None:
    outputs = {"w1": [4, 4]} | ({"y": [4, 4]} if len(nodes) > 1 and "y" in nodes[1].output else {})
    network = _step(model(nodes, {"w": [4, 4]}, outputs), {"w1": "w"}, 2)
    w = np.random.default_rng(1).integers(-3, 4, (4, 4)).astype(np.float32)
    made = _run(network, {"w": w})
    assert np.array_equal(made["w1"], expected(w))  # type: ignore[operator]
    if "y" in made:
        assert np.array_equal(made["y"], w + np.maximum(w, 0))
