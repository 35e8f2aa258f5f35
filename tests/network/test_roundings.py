"""``--check`` of 8 bits: what is rounded to either side is right, and what is wrong is told."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from polysci.export.selftest_data import make_selftest_data
from polysci.network import debug
from polysci.network.compiled import Network
from polysci.network.debug import compare_tensors, first_wrong, spreads
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals

TERMS = 63
# Sums are odd multiples of half a step, so that f64 rounds all of them to even numbers, and f32 as
# the rounding of the sum has it.
HALF = np.float32(0.05)
ODD = (2 * np.random.default_rng(0).integers(-3, 4, (4, TERMS)) + 1).astype(np.float32)


def ties(dynamic: bool) -> onnx.ModelProto:
    """What is lost by rounding sums to 8 bits, a hundred times: of either sign at a tie."""
    nodes = [node("MatMul", "x w", "m"), node("QuantizeLinear", "m s z", "q"),
             node("DequantizeLinear", "q s z", "d")]  # fmt: skip
    if dynamic:
        nodes[1:] = [
            node("DynamicQuantizeLinear", "m", "q s z"), node("DequantizeLinear", "q s z", "d")
        ]  # fmt: skip
    nodes += [node("Sub", "d m", "lost"), node("Mul", "lost hundred", "y")]
    weights = {"w": np.full((TERMS, 8), HALF), "hundred": np.float32(100)}
    if not dynamic:
        weights |= {"s": np.float32(2 * HALF), "z": np.array(0, np.int8)}
    return model(nodes, {"x": (4, TERMS)}, {"y": (4, 8)}, weights, 17)


def tie_inputs(dynamic: bool) -> dict[str, np.ndarray]:
    x = ODD.copy()
    if dynamic:  # from 0 to 25.5: a step is 0.1, as it is for the others
        x[:] = np.abs(x)
        x[0], x[0, 0] = 0, 510
    return {"x": x}


def rebuilt(made: onnx.ModelProto) -> Network:
    return network_of(read(made), apart=True)


def flipped(way: float) -> Callable[..., Any]:
    """The reference as it is where every tie is rounded up, or down."""

    def run(graph: Any, inputs: Any, *more: Any, **words: Any) -> Any:
        return RIGHT(graph, inputs, *more, **{"nudge": lambda shape: np.full(shape, way), **words})

    return run


RIGHT, MADE = debug.reference.run, debug.tensors


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_tie_may_be_rounded_to_either_side(
    dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, inputs = rebuilt(ties(dynamic)), tie_inputs(dynamic)
    moved = spreads(network.prepared.graph, inputs)
    assert moved["y"] > 0.5  # the same numbers with the other sign
    assert first_wrong(compare_tensors(network, inputs, strict=True)) is None
    errors = []
    for way in (1e-4, -1e-4):
        monkeypatch.setattr(debug.reference, "run", flipped(way))
        rows = compare_tensors(network, inputs, strict=True)
        assert first_wrong(rows) is None
        errors += [row.error for row in rows]
    assert max(errors) > debug.BOUNDS["bf16"]  # which was the bound


FAULTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "one element": lambda y: y + 0.4 * (np.arange(y.size).reshape(y.shape) == 5),
    "a scale": lambda y: 1.1 * y,
    "a sign": lambda y: -y,
    "another order": lambda y: y[::-1],
    "no number": lambda y: np.where(y == y.max(), np.nan, y),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_told(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"), node("DequantizeLinear", "q s z", "d"),
        node("MatMul", "d w", "m"), node("DynamicQuantizeLinear", "m", "q2 s2 z2"),
        node("DequantizeLinear", "q2 s2 z2", "d2"), node("MatMul", "d2 v", "y"),
    ]  # fmt: skip
    weights = {"w": reals(16, 4), "v": reals(4, 4, seed=1)}
    network = rebuilt(model(nodes, {"x": (8, 16)}, {"y": (8, 4)}, weights, 17))
    inputs = {"x": reals(8, 16, seed=3)}
    assert first_wrong(compare_tensors(network, inputs, strict=True)) is None

    def wrong(*arguments: Any) -> Any:
        made = MADE(*arguments)
        return made | {"y": FAULTS[fault](made["y"])}

    monkeypatch.setattr(debug, "tensors", wrong)
    rows = compare_tensors(network, inputs, strict=True)
    assert [row.tensor for row in rows if row.wrong] == ["y"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_self_tests_of_ties(dynamic: bool) -> None:
    data = make_selftest_data(network_of(read(ties(dynamic))))
    assert np.isfinite(data.outputs[0]).all() and data.tolerance > 0


@pytest.mark.exhaustive
def test_self_tests_allow_roundings_of_another_compiler() -> None:
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"), node("DequantizeLinear", "q s z", "d"),
        node("MatMul", "d w", "y"),
    ]  # fmt: skip
    made = model(nodes, {"x": (8, 64)}, {"y": (8, 4)}, {"w": reals(64, 4)}, 17)
    data = make_selftest_data(network_of(read(made)))
    assert 0 < data.spread < 0.05 and data.tolerance > 4 * data.spread
    assert "roundings to 8 bits" in data.derived


def test_networks_without_roundings_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model([node("MatMul", "x w", "y")], {"x": (4, 8)}, {"y": (4, 4)}, {"w": reals(8, 4)})
    graph = read(made)

    def fail(*arguments: object, **words: object) -> None:
        raise AssertionError

    monkeypatch.setattr(debug.reference, "run", fail)
    assert spreads(graph, {"x": reals(4, 8)}) == {}


# Warnings of NumPy


CONSTANTS: dict[str, tuple[list[onnx.NodeProto], dict[str, np.ndarray]]] = {
    "division by zero": (
        [node("Div", "one zero", "c"), node("Add", "x c", "y")],
        {"one": np.float32([1, 0]), "zero": np.zeros(2, np.float32)},
    ),
    "a logarithm of less than nothing": (
        [node("Log", "less", "c"), node("Add", "x c", "y")], {"less": np.float32([-1, 0])},
    ),
    "an overflow": (
        [node("Exp", "much", "c"), node("Mul", "c c", "d"), node("Add", "x d", "y")],
        {"much": np.float32([88, 500])},
    ),
    "no number as a whole one": (
        [node("Cast", "none", "c", to=6), node("Cast", "c", "d", to=1), node("Add", "x d", "y")],
        {"none": np.float32([np.nan, 1e30])},
    ),
    "a variance below zero": (
        [node("BatchNormalization", "x g b m v", "y")],
        {"g": np.ones(2, np.float32), "b": np.ones(2, np.float32), "m": np.ones(2, np.float32),
         "v": np.float32([-1, 1])},
    ),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("case", CONSTANTS)
def test_constants_that_are_no_numbers_warn_of_nothing(case: str) -> None:
    """Tests run with -W error: a warning of NumPy would end them."""
    nodes, weights = CONSTANTS[case]
    network = rebuilt(model(nodes, {"x": (1, 2)}, {"y": (1, 2)}, weights))
    rows = compare_tensors(network, {"x": reals(1, 2)}, strict=True)
    assert [row.tensor for row in rows if not row.wrong] == ["y"]
    if case != "no number as a whole one":
        assert rows[-1].non_finite > 0


def test_results_that_are_no_numbers_warn_of_nothing() -> None:
    nodes = [
        node("Log", "x", "l"), node("Exp", "x", "e"), node("Mul", "e e", "f"),
        node("Add", "l f", "y"),
    ]  # fmt: skip
    network = rebuilt(model(nodes, {"x": (1, 4)}, {"y": (1, 4)}, {}))
    (*_, row) = compare_tensors(network, {"x": np.float32([[-1, 0, 1, 80]])}, strict=True)
    assert row.tensor == "y" and row.non_finite >= 2 and not row.wrong
