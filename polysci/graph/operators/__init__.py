"""The table of operators: rows of all families by name."""

from __future__ import annotations

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


def operator_of_onnx(name: str) -> str:
    """The name of the operator that ONNX files call so; the name itself where there is none."""
    row = OPERATORS.get(name)
    if row is not None and name in row.onnx_names:
        return name
    return next((row.name for row in OPERATORS.values() if name in row.onnx_names), name)
