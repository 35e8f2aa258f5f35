"""The table of operators: rows of all families by name."""

from __future__ import annotations

from functools import cache
from typing import Final

from polysci.graph.operators import (
    convolution,
    elements,
    elementwise,
    fourier,
    indexing,
    integer_matmul,
    loops,
    narrow_products,
    normalisation,
    pooling,
    products,
    quantised,
    recurrent,
    recurrent_gradient,
    reductions,
    resize,
    sampling,
    selection,
    shape_ops,
    softmax,
)
from polysci.graph.operators.table import Operator

_FAMILIES = (
    elementwise,
    shape_ops,
    normalisation,
    indexing,
    selection,
    loops,
    sampling,
    fourier,
    pooling,
    reductions,
    softmax,
    resize,
    products,
    elements,
    convolution,
    quantised,
    integer_matmul,
    narrow_products,
    recurrent,
    recurrent_gradient,
)
OPERATORS: Final[dict[str, Operator]] = {
    row.name: row for family in _FAMILIES for row in family.ROWS
}


@cache
def operator_of_onnx(name: str) -> str:
    """Return the operator that ONNX files call so; the name itself where the table has none."""
    return next((row.name for row in OPERATORS.values() if row.onnx == name), name)


def onnx_name(op: str) -> str:
    """Return what ONNX calls an operator; the name itself where ONNX, or the table, lacks it."""
    row = OPERATORS.get(op)
    return row.onnx if row and row.onnx else op
