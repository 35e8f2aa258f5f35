"""Sums along rows: which terms meet in what order, and what is taken out of them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from polysci.loop_ir.expressions import (
    Apply,
    Expr,
    Guard,
    Load,
    Number,
    Position,
    Reduce,
    axis,
    combine,
    constant,
)
from polysci.program.passes.sums import split_sums, take_out_factors
from polysci.program.stages import LoopStage, Program, Value
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node

LANES, BLOCK = 32, 4096


def summed(row: np.ndarray) -> np.float32:
    """In so many lanes, in double for more than a block, then halves onto halves."""
    width = min(LANES, 1 << len(row).bit_length() - 1)
    whole, long = len(row) // width * width, len(row) > BLOCK
    total = np.zeros(width, np.float64 if long else np.float32)
    for at in range(0, whole, BLOCK):
        part = np.zeros(width, np.float32)
        for first in range(at, min(at + BLOCK, whole), width):
            part += row[first : first + width]
        total += part
    total[: len(row) - whole] += row[whole:]
    while len(total) > 1:
        total = total[: len(total) // 2] + total[len(total) // 2 :]
    return np.float32(total[0])


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
@pytest.mark.parametrize("shape", [(40, 8), (40, 31), (40, 100), (300, 2304), (17, 12345)])
def test_the_same_bits_on_every_isa(shape: tuple[int, int], isa: str) -> None:
    """Short rows, ragged ones, those from beyond L2, and those that are summed in double."""
    graph = read(model([node("ReduceSum", "x axes", "y", keepdims=0)], {"x": shape}, {"y": None},
                       {"axes": np.array([1])}))  # fmt: skip
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    results = network_of(graph, isa=isa)({"x": x})
    assert isinstance(results, dict)
    assert np.array_equal(results["y"], np.array([*map(summed, x)]))


@pytest.mark.parametrize(("rows", "asked"), [(8, False), (512, True)])
def test_what_streams_is_asked_for_ahead(rows: int, asked: bool) -> None:
    graph = read(model([node("ReduceSum", "x axes", "y", keepdims=0)], {"x": (rows, 512)},
                       {"y": None}, {"axes": np.array([1])}))  # fmt: skip
    text = network_of(graph).code.files["small.c"]
    loops = text[text.index("small_s0(") : text.index("static void stages")]
    assert ("__builtin_prefetch" in loops) == asked == ("simdlen" in loops)


X = Load("x", (axis(0), combine({"r0": 1})))
V = Load("v", (axis(0),))
W = Load("w", (combine({"r0": 1}),))
INT = Load("n", (axis(0), combine({"r0": 1})))


def taken_out(body: Expr, *guards: Guard, terms: int = 9) -> str:
    """The element of a stage that sums."""
    values = {
        **{name: Value(name, shape) for name, shape in
           {"x": (7, 9), "v": (7,), "w": (9,), "y": (7,)}.items()},
        "n": Value("n", (7, 9), "int32"),
    }  # fmt: skip
    stage = LoopStage("sum", "y", Reduce("add", (("r0", terms),), body, guards))
    program = Program("p", ("x", "v", "w", "n"), ("y",), ("y",), (stage,), values, {})
    (changed,) = take_out_factors(program).stages
    assert isinstance(changed, LoopStage)
    return str(changed.expr)


COUNT = Position(constant(9))


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (Apply("div", (X, COUNT)), "div(add(r0<9: {X}), {N})"),
        (Apply("mul", (V, X)), "mul({V}, add(r0<9: {X}))"),
        (Apply("div", (Apply("mul", (X, V)), Number(3.0))), "div(mul(add(r0<9: {X}), {V}), 3)"),
        (Apply("mul", (X, W)), "add(r0<9: mul({X}, {W}))"),
        (Apply("div", (V, X)), "add(r0<9: div({V}, {X}))"),
        (Apply("div", (INT, Number(2.0))), "add(r0<9: div({I}, 2))"),
        (Apply("sub", (X, V)), "add(r0<9: sub({X}, {V}))"),
    ],
)
def test_factors_of_all_terms(body: Expr, wanted: str) -> None:
    texts = {"X": str(X), "V": str(V), "W": str(W), "I": str(INT), "N": str(COUNT)}
    assert taken_out(body) == wanted.format(**texts)


def test_sums_that_may_have_no_terms_keep_theirs() -> None:
    """0, where the result would be 0 / 0."""
    body = Apply("div", (X, V))
    for text in (taken_out(body, Guard(combine({"i0": 1, "r0": -1}), 4)), taken_out(body, terms=0)):
        assert re.match(r"add\(r0<\d.*: div\(", text)


def test_what_all_terms_share_does_not_split_a_sum() -> None:
    """Each row of x is one thread's, whatever lies beside its result."""
    body = Apply("square", (Apply("sub", (X, V)),))
    values = {"x": Value("x", (700, 900)), "v": Value("v", (700,)), "y": Value("y", (700,))}
    stage = LoopStage("sum", "y", Reduce("add", (("r0", 900),), body))
    program = Program("p", ("x", "v"), ("y",), ("y",), (stage,), values, {})
    assert split_sums(program).stages == (stage,)
