"""Reductions whose iterators do not run along the whole target read nothing outside of tensors."""

from __future__ import annotations

import numpy as np
import pytest

from polysci import notation
from polysci.frontends.notation.elaborate import elaborate
from polysci.frontends.notation.graphs import graph_of_comprehension
from polysci.graph.graph import ELEMENTS
from polysci.loop_ir.expressions import Expr, Load, Reduce, Where, children, walk
from polysci.numerics.affine import Affine

INPUTS = "float(10) A, float(10,6) B, float(40) O, double(40) D, s8(40) S, float(6,8) C"
STATEMENTS = [
    "O(i) max= A(i+k) where k in 0:3",
    "O(i) +=! A(i+k) * A(k) where i in 2:5, k in 0:3",
    "O(i) += (i > 4 ? A(i+1) : 0.0) * A(k) where i in 1:9",
    "O(i) *= A(i-20+k) where k in 0:3",
    "D(i) min= B(i,k)",
    "D(i) += A(i+k) where k in 0:2",
    "S(i) argmax=! B(i,k)",
    "D(i) argmin=! B(i-3,k)",
    "S(i) += B(i-1,k)",
    "Z(i) +=! A(i-20+k) where k in 0:3",
    "Z(i) argmax=! B(i-20,k)",
    "Z(i,j) +=! B(i-3,k) * C(k,j) Z(i,j) += B(i,k) * C(k,j+2) where i in 2:5",
]


def subscripts_of_reduction(
    total: Reduce, shape: tuple[int, ...]
) -> list[tuple[Load, int, int, int]]:
    """Of each subscript behind no condition the axis, the first and the last value."""
    ends = {f"i{at}": size for at, size in enumerate(shape)} | dict(total.over)
    todo: list[Expr] = [total.body] if not total.guards else []
    values = []
    while todo:
        part = todo.pop()
        if isinstance(part, Load):
            for at, form in enumerate(part.index):
                assert isinstance(form, Affine)
                moves = [coef * (ends[name] - 1) for name, coef in form.terms]
                low, high = (
                    form.const + sum(pick(0, move) for move in moves) for pick in (min, max)
                )
                values.append((part, at, low, high))
        todo += () if isinstance(part, Where) else children(part)
    return values


@pytest.mark.sampled
@pytest.mark.parametrize("statements", STATEMENTS)
def test_reductions_stay_inside_what_they_read(statements: str) -> None:
    output = statements.partition("(")[0]
    text = f"def f({INPUTS}) -> ({output}) {{ {statements} }}"
    random = np.random.default_rng(2)
    shapes = {"A": (10,), "B": (10, 6), "O": (40,), "D": (40,), "S": (40,), "C": (6, 8)}
    types = {"D": "f8", "S": "i1"}
    arrays = {
        name: random.integers(-3, 4, shape).astype(types.get(name, "f4"))
        for name, shape in shapes.items()
    }
    function = notation.compile(text, level="estimate", threads=2)
    np.testing.assert_array_equal(function(**arrays), notation.interpret(text, arrays)[output])
    graph, _ = graph_of_comprehension(elaborate(notation.parse(text)), {})
    for node in graph.nodes:
        if node.op != ELEMENTS:
            continue
        expr = node.attributes["expr"]
        if not isinstance(expr, Reduce):
            assert not any(isinstance(part, Reduce) for part in walk(expr)), str(expr)
            continue
        for load, at, low, high in subscripts_of_reduction(
            expr, graph.tensors[node.outputs[0]].shape
        ):
            size = graph.tensors[node.inputs[int(load.tensor)]].shape[at]
            assert low >= 0 and high < size, f"{load}, axis {at}: {low} to {high}"
