"""``swap(A,B)``: the factors of a contraction change places, so that pixels run along vectors.

A kernel reads rows of B by whole vectors and broadcasts elements of A. Weights are B where channels
are neighbours in memory. Where pixels are (NCHW, the columns of a matrix), the result is stored
through a transpose; with the factors swapped it is not: w, packed ahead, is A, whose rows are
output channels, and x is B, whose columns are pixels.

All pixels of an image are one row of columns, a ``FlatImage``: a tap of a filter reads the same
columns some positions further. Between the rows of a padded image there are zeros, which calls put
into a copy first; as many columns at the end of a row have results that are not stored. Where
pixels lie apart (strides), a call gathers them in a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Final

from polysci.errors import UnsupportedError
from polysci.loop_ir.index import Index, as_index
from polysci.loop_ir.nodes import (
    Buffer,
    Declare,
    Fields,
    Invoke,
    LoopStatement,
    Named,
    Scope,
    Value,
)
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import LINE
from polysci.polyhedral.contraction import Contraction, Dim, FlatImage, Operand, Strides
from polysci.space.directives.directive import Directive, TilePart
from polysci.space.prefetch import steps_ahead
from polysci.target.coefficients import prior_of
from polysci.target.microkernels import Microkernel

if TYPE_CHECKING:
    from polysci.space.plan import Tile
    from polysci.space.schedule import Schedule

OPERANDS: Final[tuple[Value, ...]] = tuple(map(Named, ("acc", "t", "A", "B")))


@dataclass(frozen=True, slots=True)
class Swap(Directive):
    """Rows of a call are what columns are otherwise (``GroupView.swapped``)."""

    word = "swap(A,B)"
    own_kind = True

    def refusal(
        self, contraction: Contraction, strides: Strides, schedule: Schedule, kernel: Microkernel
    ) -> str:
        why = swap_refusal(contraction, strides)
        if not why and kernel.outer_products:
            why = f"{kernel} reads rows of x as A"
        return f"cannot swap the factors: {why}" if why else ""

    def tile_part(self, tile: Tile) -> TilePart:
        """Return the reduction: A by panels of its rows, B from x by vectors."""
        plan, x = tile.plan, tile.plan.coef["x"]
        fields = {"wrap": tile.rows, "a_outer": 0, "a_inner": 1}  # rows of a panel of w
        taps = [tap for tap in plan.taps if plan.extent(tap) > 1]
        if taps:
            pairs = [(1, 0)] * (2 - len(taps)) + [(plan.extent(tap), x[tap]) for tap in taps]
            values = tuple(Fields((("", count), ("", step))) for count, step in pairs)
            buffer = Buffer("taps", "ps_tap", as_index(2), Scope.CONSTANT)
            run = Invoke("ps_run_taps", (*OPERANDS, tile.depth, _step(tile), Named("taps")))
            return TilePart(fields=fields, sums=(Declare(buffer, values), run))
        deep = tile.depth >= prior_of("long_depth")
        if deep and plan.contraction.x.bytes * _step(tile) >= LINE:
            fields["soon"] = steps_ahead()
        return TilePart(fields=fields, sums=run_rows(tile))


def run_rows(tile: Tile, following: Index | int = 0) -> tuple[LoopStatement, ...]:
    """Return the reduction over k alone; ``following``: elements to what a call prefetches of x."""
    operands = (*OPERANDS, tile.depth, _step(tile), following)
    return (Invoke("ps_run_rows", operands),)


def _step(tile: Tile) -> int:
    """Return the elements of x from one step of the reduction to the next."""
    return tile.plan.coef["x"][tile.plan.depth] if tile.plan.depth else 0


def swap_roles(contraction: Contraction) -> Contraction:
    """The contraction with its factors swapped and the image rows joined into one dimension.

    Raises UnsupportedError where the roles forbid it.
    """
    if why := _unfit(contraction):
        raise UnsupportedError(f"{contraction.formula}: cannot swap the factors: {why}")
    column = pixels_of(contraction)
    row = row_of(contraction, column)
    image = _flat_image(contraction, column, row)
    length = image.length if image else column.extent * (row.extent if row else 1)
    extents = {column: length} | ({row: 1} if row else {})
    dims = tuple(Dim(d.name, extents.get(d, d.extent), _role(d, column)) for d in contraction.dims)
    x, out = contraction.a, contraction.out
    if row:
        pitch = image.pitch if image else 0
        x, out = (_join(contraction, own, row, column, pitch, length) for own in (x, out))
    return replace(
        contraction, dims=dims, a=contraction.b, b=x, out=out, padded=False, swapped=True,
        image=image,
    )  # fmt: skip


def swap_refusal(contraction: Contraction, strides: Strides) -> str:
    """Return why kernels cannot take the factors of a contraction swapped; empty where they can."""
    if why := _unfit(contraction):
        return why
    swapped, column = swap_roles(contraction), pixels_of(contraction)
    row, image = row_of(contraction, column), swapped.image
    for operand in (contraction.out, *([contraction.a] if image else [])):
        steps = strides[operand.array]
        if operand.offset(steps).coef(column.name) != 1:
            return f"elements of {operand.array} along {column.name!r} are not neighbours"
        copied = image and image.bordered and operand is contraction.a
        if row and not copied and steps[-2] != operand.shape[-1] * steps[-1]:
            return f"there are gaps between the rows of {operand.array}"
    return ""


def unfit_operands(contraction: Contraction) -> str:
    """Return why pixels cannot run along vectors whatever the roles are; empty where they can."""
    types = {operand.dtype for operand in (contraction.a, contraction.b, contraction.out)}
    if types != {"f32"}:
        return f"only factors and results of f32 can be, not of {', '.join(sorted(types))}"
    if contraction.packs_b:
        return f"{contraction.b.array} changes from call to call"
    return ""


def _unfit(contraction: Contraction) -> str:
    """Return what the roles alone forbid."""
    if why := unfit_operands(contraction):
        return why
    if any(d.extent > 1 for d in contraction.by_role("batch")):
        return "it has groups"
    if len(contraction.by_role("k")) > 1 or len(contraction.by_role("n")) != 1:
        return "it has no or several dimensions of columns or of the reduction"
    if not any(_may_run(contraction, d) for d in contraction.by_role("m")):
        return f"no row runs along the last axis of {contraction.a.array} and the result"
    return _unfit_taps(contraction) if has_window(contraction) else ""


def has_window(contraction: Contraction) -> bool:
    """Return whether a pixel of the result reads several of x, or beyond its edges."""
    return prod(d.extent for d in contraction.by_role("br")) > 1 or contraction.padded


def _unfit_taps(contraction: Contraction) -> str:
    """Return what forbids that taps read the columns some positions further."""
    x, column = contraction.a, pixels_of(contraction)
    row = row_of(contraction, column)
    if row is None:
        return "it has taps or padding, and image rows that do not follow each other"
    if any(x.index[axis].coef(d.name) != 1 for axis, d in ((-1, column), (-2, row))):
        return "it has strides, with taps or padding"
    if any(x.index[axis].const > 0 for axis in (-1, -2)):
        return f"it reads {x.array} from inside its edges"
    for tap in contraction.by_role("br"):
        axes = [axis - len(x.index) for axis, index in enumerate(x.index) if index.coef(tap.name)]
        if tap.extent > 1 and (
            axes not in ([-1], [-2])
            or x.index[axes[0]].coef(tap.name) < 0
            or len(x.index[axes[0]].terms) > 2
        ):
            return f"the tap {tap.name!r} is not one along a row or a column of {x.array}"
    if any(index.const or len(index.terms) > 1 for index in x.index[:-2]):
        return f"several dimensions index an axis of {x.array} outside its images"
    return ""


def _may_run(contraction: Contraction, row: Dim) -> bool:
    """Return whether a row can be the columns; steps over 1 in x are gathered by whole images."""
    x, out = contraction.a, contraction.out
    step = x.index[-1].coef(row.name)
    return (
        row.extent > 1
        and out.index[-1].coef(row.name) == 1
        and not out.index[-1].const
        and (step == 1 or (step > 1 and row_of(contraction, row) is not None))
    )


def pixels_of(contraction: Contraction) -> Dim:
    """The row of the product that becomes the columns."""
    return next(row for row in contraction.by_role("m") if _may_run(contraction, row))


def row_of(contraction: Contraction, column: Dim) -> Dim | None:
    """The dimension of image rows: it continues the columns in the result, and has an axis of x."""
    x, out = contraction.a, contraction.out
    if len(x.index) < 2:
        return None
    for row in contraction.by_role("m"):
        whole = _whole(out, row, -2) and _whole(out, column, -1)
        several = row.extent > 1 or has_window(contraction)
        if several and row != column and whole and x.index[-2].coef(row.name) > 0:
            return row
    return None


def _flat_image(contraction: Contraction, column: Dim, row: Dim | None) -> FlatImage | None:
    """The image whose positions are the columns; None where pixels are gathered."""
    x = contraction.a
    height, width = (x.shape[-2] if row else 1), x.shape[-1]
    rows, columns = (row.extent if row else 1), column.extent
    if not has_window(contraction):
        steps = (x.index[axis].coef(d.name) for axis, d in ((-1, column), (-2, row)) if d)
        apart = row and not all(_whole(x, d, axis) for d, axis in ((column, -1), (row, -2)))
        if apart or set(steps) != {1}:
            return None
        return FlatImage(height, width, 0, 0, width, rows, columns, bordered=False)
    top, left = (-x.index[axis].const for axis in (-2, -1))
    reach = sum(
        coef * (contraction.extent(name) - 1) for name, coef in x.index[-1].terms
    )  # of the last column's last tap
    beside = max(left, reach - left - (width - 1))  # neighbouring rows share these zeros
    return FlatImage(
        height, width, top, left, max(width + beside, columns), rows, columns,
        bordered=contraction.padded,
    )  # fmt: skip


def _role(dim: Dim, column: Dim) -> str:
    """Rows beside the columns are batches: each of their steps is a product of its own."""
    if dim == column:
        return "n"
    return {"m": "batch", "n": "m"}.get(dim.role, dim.role)


def _whole(operand: Operand, dim: Dim, axis: int) -> bool:
    """Return whether a dimension is all of an axis, step by step."""
    if len(operand.shape) < -axis:
        return False
    index = operand.index[axis]
    return index.coef(dim.name) == 1 and not index.const and operand.shape[axis] == dim.extent


def _join(
    contraction: Contraction, operand: Operand, row: Dim, column: Dim, pitch: int, length: int
) -> Operand:
    """The last two axes as one: ``length`` columns, and taps with image rows ``pitch`` apart."""
    across, along = operand.index[-2:]
    taps = [(name, coef) for name, coef in along.terms if name != column.name]
    taps += [(name, coef * pitch) for name, coef in across.terms if name != row.name and pitch]
    span = length + sum(coef * (contraction.extent(name) - 1) for name, coef in taps)
    joined = Affine(((column.name, 1), *taps))
    index = (*operand.index[:-2], Affine(((row.name, 1),)), joined)
    return replace(operand, shape=(*operand.shape[:-2], 1, span), index=index)
