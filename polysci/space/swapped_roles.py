"""The factors of a contraction with their places changed: pixels along the vectors.

A kernel reads rows of B by whole vectors and broadcasts elements of A. Weights are B where channels
are neighbours in memory. Where pixels are (NCHW, the columns of a matrix), the result is stored
through a transpose; with the factors swapped it is not: w, packed ahead, is A, whose rows are
output channels, and x is B, read where it lies, whose columns are pixels. All pixels of an image
are one row of columns where both x and the result hold them without a gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from polysci.errors import UnsupportedError
from polysci.polyhedral.affine import Affine
from polysci.polyhedral.contraction import Contraction, Dim, Operand, columns_of

Strides = Mapping[str, tuple[int, ...]]


def swap_roles(contraction: Contraction) -> Contraction:
    """The contraction with its factors swapped and the image rows joined into one dimension.

    Raises UnsupportedError where the roles forbid it.
    """
    if why := _unfit(contraction):
        raise UnsupportedError(f"{contraction.formula}: cannot swap the factors: {why}")
    column = _pixels(contraction)
    folded = _folded(contraction, column)
    length = column.extent * (folded.extent if folded else 1)
    extents = {column: length} | ({folded: 1} if folded else {})
    dims = tuple(Dim(d.name, extents.get(d, d.extent), _role(d, column)) for d in contraction.dims)
    x, out = contraction.a, contraction.out
    if folded:
        x, out = (_fold(operand, folded, column) for operand in (x, out))
    return replace(contraction, dims=dims, a=contraction.b, b=x, out=out, swapped=True)


def refusal(contraction: Contraction, strides: Strides) -> str:
    """Why kernels cannot take the factors of a contraction swapped; empty where they can."""
    if why := _unfit(contraction):
        return why
    swapped = swap_roles(contraction)
    column = columns_of(swapped)
    for operand in (swapped.x, swapped.out):
        if operand.offset(strides[operand.array]).coef(column.name) != 1:
            return f"elements of {operand.array} along {column.name!r} are not neighbours"
    folded = _folded(contraction, _pixels(contraction))
    for operand in (contraction.a, contraction.out) if folded else ():
        axis = _axis(operand, column)
        step = strides[operand.array]
        if step[axis - 1] != operand.shape[axis] * step[axis]:
            return f"there are gaps between the rows of {operand.array}"
    return ""


def _unfit(contraction: Contraction) -> str:
    """What the roles alone forbid."""
    types = {operand.dtype for operand in (contraction.a, contraction.b, contraction.out)}
    if types != {"f32"}:
        return f"only factors and results of f32 can be, not of {', '.join(sorted(types))}"
    if contraction.packs_b:
        return f"{contraction.b.array} changes from call to call"
    if any(d.extent > 1 for d in contraction.by_role("batch")):
        return "it has groups"
    if prod(d.extent for d in contraction.by_role("br")) > 1 or contraction.padded:
        return "it has taps or padding"
    if len(contraction.by_role("k")) > 1 or len(contraction.by_role("n")) != 1:
        return "it has no or several dimensions of columns or of the reduction"
    if not any(_axis_may_run(contraction, d) for d in contraction.by_role("m")):
        return f"no row runs along the last axis of {contraction.a.array} and the result"
    return ""


def _axis_may_run(contraction: Contraction, row: Dim) -> bool:
    """Whether a row steps through the last axes of x and the result one element at a time."""
    operands = contraction.a, contraction.out
    return row.extent > 1 and all(
        o.index[-1].coef(row.name) == 1 and o.index[-1].const == 0 for o in operands
    )


def _pixels(contraction: Contraction) -> Dim:
    """The row that becomes the columns."""
    rows = contraction.by_role("m")
    return next(row for row in rows if _axis_may_run(contraction, row))


def _role(dim: Dim, column: Dim) -> str:
    """Rows beside the columns are batches: each of their steps is a product of its own."""
    if dim == column:
        return "n"
    return {"m": "batch", "n": "m"}.get(dim.role, dim.role)


def _folded(contraction: Contraction, column: Dim) -> Dim | None:
    """The row around the columns that continues them, on the axis before theirs, if any does."""
    for row in contraction.by_role("m"):
        if row.extent > 1 and all(
            _whole(operand, row, -2) and _whole(operand, column, -1)
            for operand in (contraction.a, contraction.out)
        ):
            return row
    return None


def _whole(operand: Operand, dim: Dim, axis: int) -> bool:
    """Whether a dimension is all of an axis, step by step."""
    if len(operand.shape) < -axis:
        return False
    index: Affine = operand.index[axis]
    return index.coef(dim.name) == 1 and not index.const and operand.shape[axis] == dim.extent


def _fold(operand: Operand, outer: Dim, inner: Dim) -> Operand:
    """The last two axes as one, which the last one's subscript runs along."""
    shape = (*operand.shape[:-2], 1, outer.extent * inner.extent)
    return replace(operand, shape=shape)


def _axis(operand: Operand, dim: Dim) -> int:
    return next(i for i, index in enumerate(operand.index) if index.coef(dim.name))
