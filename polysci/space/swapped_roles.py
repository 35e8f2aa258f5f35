"""The factors of a contraction with their places changed: pixels along the vectors.

A kernel reads rows of B by whole vectors and broadcasts elements of A. Weights are B where channels
are neighbours in memory. Where pixels are (NCHW, the columns of a matrix), the result is stored
through a transpose; with the factors swapped it is not: w, packed ahead, is A, whose rows are
output channels, and x is B, read where it lies, whose columns are pixels. All pixels of an image
are one row of columns where the result holds them without a gap; where x does not (strides), a call
gathers them in a copy first.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polysci.errors import UnsupportedError
from polysci.polyhedral.affine import Affine
from polysci.polyhedral.contraction import Contraction, Dim, Operand
from polysci.polyhedral.schedule import Schedule
from polysci.space.knobs import Strides


def swap_roles(contraction: Contraction) -> Contraction:
    """The contraction with its factors swapped and the image rows joined into one dimension.

    Raises UnsupportedError where the roles forbid it.
    """
    if why := _unfit(contraction):
        raise UnsupportedError(f"{contraction.formula}: cannot swap the factors: {why}")
    column = pixels_of(contraction)
    folded = folded_of(contraction, column)
    length = column.extent * (folded.extent if folded else 1)
    extents = {column: length} | ({folded: 1} if folded else {})
    dims = tuple(Dim(d.name, extents.get(d, d.extent), _role(d, column)) for d in contraction.dims)
    x, out = contraction.a, contraction.out
    gathered = not all(_whole(x, d, axis) for d, axis in ((column, -1), (folded, -2)) if d)
    if folded:
        x, out = (_fold(operand, column, length) for operand in (x, out))
    return replace(
        contraction, dims=dims, a=contraction.b, b=x, out=out, swapped=True,
        gathered=bool(folded) and gathered,
    )  # fmt: skip


def refusal(contraction: Contraction, strides: Strides) -> str:
    """Why kernels cannot take the factors of a contraction swapped; empty where they can."""
    if why := _unfit(contraction):
        return why
    swapped, column = swap_roles(contraction), pixels_of(contraction)
    folded = folded_of(contraction, column)
    for operand in (contraction.out, *([] if swapped.gathered else [contraction.a])):
        steps = strides[operand.array]
        if operand.offset(steps).coef(column.name) != 1:
            return f"elements of {operand.array} along {column.name!r} are not neighbours"
        if folded and steps[-2] != operand.shape[-1] * steps[-1]:
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
    if not any(_may_run(contraction, d) for d in contraction.by_role("m")):
        return f"no row runs along the last axis of {contraction.a.array} and the result"
    return ""


def _may_run(contraction: Contraction, row: Dim) -> bool:
    """Whether a row can be the columns: steps of any size in x are gathered with whole images."""
    x, out = contraction.a, contraction.out
    step = x.index[-1].coef(row.name)
    return (
        row.extent > 1
        and out.index[-1].coef(row.name) == 1
        and not out.index[-1].const
        and (step == 1 or (step > 1 and folded_of(contraction, row) is not None))
    )


def pixels_of(contraction: Contraction) -> Dim:
    """The row that becomes the columns."""
    return next(row for row in contraction.by_role("m") if _may_run(contraction, row))


def folded_of(contraction: Contraction, column: Dim) -> Dim | None:
    """The row around the columns that continues them in the result, and has an axis of x."""
    x, out = contraction.a, contraction.out
    for row in contraction.by_role("m"):
        whole = _whole(out, row, -2) and _whole(out, column, -1)
        if row.extent > 1 and whole and x.index[-2].coef(row.name) > 0:
            return row
    return None


def _role(dim: Dim, column: Dim) -> str:
    """Rows beside the columns are batches: each of their steps is a product of its own."""
    if dim == column:
        return "n"
    return {"m": "batch", "n": "m"}.get(dim.role, dim.role)


def _whole(operand: Operand, dim: Dim, axis: int) -> bool:
    """Whether a dimension is all of an axis, step by step."""
    if len(operand.shape) < -axis:
        return False
    index = operand.index[axis]
    return index.coef(dim.name) == 1 and not index.const and operand.shape[axis] == dim.extent


def _fold(operand: Operand, column: Dim, length: int) -> Operand:
    """The last two axes as one of that length, which the columns run along."""
    last = operand.index[-1]
    terms = tuple((name, 1 if name == column.name else coef) for name, coef in last.terms)
    index = (*operand.index[:-1], Affine(terms, last.const))
    return replace(operand, shape=(*operand.shape[:-2], 1, length), index=index)


def check_pixels_ahead(contraction: Contraction, schedule: Schedule) -> None:
    """Raise UnsupportedError unless ``ahead(B)`` can prefetch the next columns of x.

    Calls of several rows read the same columns before the next ones come.
    """
    loops = [loop.dim for loop in schedule.loops]
    rows = [dim.name for dim in contraction.by_role("m")]
    columns = [dim.name for dim in contraction.by_role("n") if dim.extent > 1]
    if contraction.gathered or not set(loops[-1:]) <= set(rows) or not set(columns) & set(loops):
        raise UnsupportedError(
            f"schedule {schedule}: ahead(B) with swapped factors needs x as it lies, and the loop "
            f"over rows inside the one over its pixels"
        )


def ahead_may_pay(contraction: Contraction, l2: float) -> bool:
    """Whether x exceeds ``l2`` bytes: a panel of columns has a line in many pages of it."""
    x = contraction.x
    return contraction.swapped and not contraction.gathered and prod(x.shape) * x.bytes > l2
