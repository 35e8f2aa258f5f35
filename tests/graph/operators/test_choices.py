"""Operators that choose between values, alone and inside one loop with what they choose by."""

import numpy as np
import pytest

from polysci.errors import UnsupportedError
from polysci.graph.passes.table import simplify
from polysci.network.prepare import prepare
from polysci.program.stages import LoopStage
from tests.support.networks import network_of, read
from tests.support.nodecases import Case, difference, faults, model_of
from tests.support.onnxmodels import model, node

TYPES = ("float32", "float64", "int8", "uint8", "int32", "int64", "uint64", "bool")
SPECIAL = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 0.5])


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=3, size=shape).astype(dtype)


def truths(shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(numbers(shape, "float32", 1) > 0)


def test_where() -> None:
    shapes = (((), (), ()), ((3, 1), (4,), (2, 3, 1)), ((2, 3), (1,), (2, 3)),
              ((0, 2), (2,), (1,)))  # fmt: skip
    cases = [
        Case("Where", (truths(c), numbers(x, dtype, 2), numbers(y, dtype, 3)))
        for dtype in TYPES for c, x, y in shapes[:: 1 + (dtype != "float32")]
    ]  # fmt: skip
    condition, x = numbers((5,), "float32") > 0, numbers((5,), "int64")
    cases += [Case("Where", (condition, x, np.array(2**60 + 1)), {}, (2,)),
              Case("Where", (np.array(True), x, x + 1), {}, (0,))]  # fmt: skip
    assert not faults(cases, 16)


def test_rectifiers() -> None:
    cases = [
        Case("PRelu", (numbers((2, 3, 4), dtype), numbers(slope, dtype, 1)), {}, fixed)
        for dtype in ("float32", "float64", "int32", "uint64")
        for slope, fixed in (((3, 1), (1,)), ((1,), (1,)), ((2, 3, 4), ()))
    ]  # fmt: skip
    cases += [
        Case(op, (x,), words)
        for op in ("ThresholdedRelu", "Shrink")
        for words in ({}, {"alpha": 0.2} if op != "Shrink" else {"bias": 0.7, "lambd": 1.1})
        for x in (numbers((3, 4), "float32"), numbers((0, 2), "float32"), np.float32(SPECIAL))
    ]
    cases += [Case("Shrink", (numbers((9,), dtype),), {"bias": 1.5, "lambd": 1.0})
              for dtype in ("int32", "uint8", "float64")]  # fmt: skip
    assert not faults(cases, 16)


def test_infinite_numbers() -> None:
    cases = [
        Case("IsInf", (SPECIAL.astype(dtype),), {"detect_negative": low, "detect_positive": high})
        for dtype in ("float32", "float64") for low in (0, 1) for high in (0, 1)
    ]  # fmt: skip
    assert not faults(cases, 10)


def test_a_slope_that_does_not_broadcast_is_refused() -> None:
    case = Case("PRelu", (numbers((2, 3), "float32"), numbers((4, 2, 3), "float32")))
    with pytest.raises(UnsupportedError, match=r"slope \[4, 2, 3\] for x \[2, 3\]"):
        prepare(simplify(read(model_of([case], 16))))


@pytest.mark.exhaustive
def test_comparisons_become_part_of_the_loop_that_chooses_by_them() -> None:
    nodes = [
        node("Tanh", "x", "t"), node("Less", "t z", "less"), node("IsNaN", "x", "strange"),
        node("Or", "less strange", "either"), node("Not", "either", "neither"),
        node("Where", "neither x z", "y"),
    ]  # fmt: skip
    chain = model(nodes, {"x": [2, 3, 4, 5], "z": [4, 1]}, {"y": None})
    graph = read(chain)
    stages = prepare(simplify(graph)).program.stages
    assert len(stages) == 1 and isinstance(stages[0], LoopStage), stages
    x, z = numbers((2, 3, 4, 5), "float32"), numbers((4, 1), "float32", 1) / 8
    x[0, 0, 0, 0] = np.nan
    with np.errstate(all="ignore"):
        exact = np.where((np.tanh(x) < z) | np.isnan(x), np.broadcast_to(z, x.shape), x)
    for options in ({}, {"fuse": False}, {"threads": 2}, {"isa": "avx2"}):
        results = network_of(graph, **options)({"x": x, "z": z})
        assert isinstance(results, dict) and not difference(results["y"], exact)


def test_a_truth_becomes_a_number_in_the_same_loop() -> None:
    nodes = [node("Greater", "x z", "above"), node("Cast", "above", "one", to=1),
             node("Cast", "above", "whole", to=7), node("Mul", "one x", "a"),
             node("Add", "whole whole", "b")]  # fmt: skip
    graph = read(model(nodes, {"x": [3, 4], "z": [4]}, {"a": None, "b": None}))
    x, z = numbers((3, 4), "float32"), numbers((4,), "float32", 1)
    results = network_of(graph)({"x": x, "z": z})
    assert isinstance(results, dict)
    np.testing.assert_array_equal(results["a"], np.where(x > z, x, 0))
    np.testing.assert_array_equal(results["b"], 2 * (x > z).astype(np.int64))


def test_a_choice_of_constants_keeps_its_type_inside_another_loop() -> None:
    """0.3, 0.7 and 0.5 would all be 0 as whole numbers."""
    weights = {"low": np.float32(0.3), "high": np.float32(0.7), "half": np.float32(0.5)}
    nodes = [node("Greater", "x half", "c"), node("Where", "c low high", "w"),
             node("Less", "w half", "y"), node("Where", "c low high", "v"),
             node("Mul", "v ten", "tens"), node("Cast", "tens", "z", to=7)]  # fmt: skip
    graph = read(model(nodes, {"x": [3, 4]}, {"y": None, "z": None},
                       weights | {"ten": np.float32(10)}))  # fmt: skip
    x = numbers((3, 4), "float32")
    for fuse in (True, False):
        results = network_of(graph, fuse=fuse)({"x": x})
        assert isinstance(results, dict)
        np.testing.assert_array_equal(results["y"], x > 0.5)
        np.testing.assert_array_equal(results["z"], np.where(x > 0.5, 3, 7))
