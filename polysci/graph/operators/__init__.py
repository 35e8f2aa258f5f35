"""The table of operators: rows of all families by name."""

from __future__ import annotations

from functools import cache
from typing import Final

from polysci.graph.operators import (
    convolution,
    deform_conv,
    dynamic_dims,
    einsum,
    elements,
    elementwise,
    fourier,
    gather,
    loops,
    losses,
    normalisation,
    pooling,
    pooling_gradients,
    products,
    quantised,
    quantised_products,
    quantised_recurrent,
    rearrange,
    recurrent,
    recurrent_gradient,
    reductions,
    resize,
    sampling,
    scans,
    scatter,
    select,
    selection,
    shape_ops,
    softmax,
    transposed,
    weights_gradient,
)
from polysci.graph.operators.table import Operator

_FAMILIES = (
    elementwise,
    select,
    shape_ops,
    normalisation,
    rearrange,
    gather,
    scatter,
    selection,
    dynamic_dims,
    loops,
    sampling,
    deform_conv,
    fourier,
    pooling,
    pooling_gradients,
    reductions,
    softmax,
    losses,
    scans,
    resize,
    products,
    einsum,
    elements,
    convolution,
    transposed,
    weights_gradient,
    quantised,
    quantised_products,
    recurrent,
    recurrent_gradient,
    quantised_recurrent,
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
