"""A contraction as stencil kernels take it: pixels along the vectors, weights as scalars.

A depthwise layer has no matrix product in it: each channel's image is filtered by weights of its
own. Where channels are neighbours in memory they run along the vectors (``depthwise`` kernels).
Where pixels are (NCHW), the columns of a stencil kernel's tile are pixels of an image row, its rows
are image rows, and channels are batches: x is read where it lies, by loads that start at any
element, and results are stored as they are. Nothing is packed but the weights, channel by channel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polysci.errors import UnsupportedError
from polysci.numerics.affine import Affine
from polysci.polyhedral.contraction import Contraction, Dim, Strides, columns_of
from polysci.space.directives.swap import unfit_operands
from polysci.space.schedule import Schedule

STEPS = (1, 2)  # elements of x between neighbouring pixels of the result that kernels can read
MOST_ROWS = 64  # of x under one call: compilers unroll no longer loops


@dataclass(frozen=True, slots=True)
class FilterAxis:
    """A filter's moves over x along one axis: ``step`` a pixel, ``apart`` a tap, of ``taps``.

    ``dim`` are the pixels, None where there is one, and ``tap`` the taps, None where there is one.
    """

    dim: str | None
    tap: str | None
    step: int
    apart: int
    taps: int

    def span(self, pixels: int) -> int:
        """Positions of x under so many pixels."""
        return (pixels - 1) * self.step + (self.taps - 1) * self.apart + 1


def stencil_roles(contraction: Contraction) -> Contraction:
    """The contraction with its pixels as columns and all but one of the other rows as batches.

    Raises UnsupportedError where the roles forbid it.
    """
    if why := _unfit(contraction):
        raise UnsupportedError(f"{contraction.formula}: no stencil: {why}")
    column, row = _pixels_of(contraction), _rows_of(contraction)
    roles = {column: "n"} | ({row: "m"} if row else {})
    dims = tuple(
        replace(d, role=roles.get(d, d.role if d.role in ("k", "br") else "batch"))
        for d in contraction.dims
    )
    return replace(contraction, dims=dims, channels=columns_of(contraction).name)


def is_stencil(contraction: Contraction) -> bool:
    """Return whether the columns are pixels: A is a vector along them, B is not."""
    column = columns_of(contraction).name
    return contraction.a.uses(column) and not contraction.b.uses(column)


def stencil_refusal(contraction: Contraction, strides: Strides) -> str:
    """Return why stencil kernels do not take a contraction; empty where they do."""
    if why := _unfit(contraction):
        return why
    for operand in (contraction.out, contraction.a):
        if strides[operand.array][-1] != 1:
            return f"elements along the last axis of {operand.array} are not neighbours"
    return ""


def windows_of(contraction: Contraction) -> tuple[FilterAxis, FilterAxis]:
    """The windows along the rows and along the columns of a contraction in these roles."""
    rows = contraction.by_role("m")
    return (
        _window(contraction, rows[0] if rows else None),
        _window(contraction, columns_of(contraction)),
    )


def taps_of(contraction: Contraction) -> tuple[str, ...]:
    """The taps, those along the columns last: kernels read a row of the filter as it lies."""
    along = windows_of(contraction)[1].tap
    taps = [d.name for d in contraction.by_role("br") if contraction.a.uses(d.name)]
    return tuple(sorted(taps, key=lambda tap: tap == along))


def check_window(contraction: Contraction, schedule: Schedule) -> None:
    """Raise UnsupportedError unless a stencil kernel can compute the tiles of a schedule."""
    if schedule.pack:
        raise UnsupportedError(
            f"schedule {schedule}: {schedule.kernel} reads x where it lies: no pack(A)"
        )
    rows, _ = windows_of(contraction)
    tile = schedule.tile({d.name: d.extent for d in contraction.dims})
    if (span := rows.span(tile[rows.dim] if rows.dim else 1)) > MOST_ROWS:
        raise UnsupportedError(
            f"schedule {schedule}: a call reads {span} rows of {contraction.a.array}, more than "
            f"{MOST_ROWS}"
        )


def _unfit(contraction: Contraction) -> str:
    """Return what the roles alone forbid."""
    if why := unfit_operands(contraction):
        return why
    if summed := [d.name for d in contraction.by_role("k") if d.extent > 1]:
        return f"it sums over {summed[0]!r}, and not only over taps"
    if not any(contraction.b.uses(d.name) for d in contraction.dims if d.role in ("n", "batch")):
        return f"{contraction.b.array} has no channels"
    column = _pixels_of(contraction)
    if column is None:
        return (
            f"no pixels run along the last axis of {contraction.out} and of {contraction.a}, one "
            "or two elements a step"
        )
    row = _rows_of(contraction)
    for dim in contraction.by_role("m"):
        if dim not in (column, row) and _taps_along(contraction, dim):
            return f"it has taps along {dim.name!r} and another axis beside {column.name!r}"
    along = [tap for dim in (row, column) if dim for tap in _taps_along(contraction, dim)]
    if len(along) < sum(d.extent > 1 for d in contraction.by_role("br")):
        return "it has taps along an axis without pixels"
    if row and len(_taps_along(contraction, row)) > 1:
        return f"it has two taps along {row.name!r}"
    return ""


def _pixels_of(contraction: Contraction) -> Dim | None:
    """The row that becomes the columns."""
    x, out = contraction.a.index[-1], contraction.out.index[-1]
    taps = {d.name for d in contraction.by_role("br") if d.extent > 1}
    for dim in contraction.by_role("m"):
        others = [name for name, _ in x.terms if name != dim.name and contraction.extent(name) > 1]
        alone = out == Affine(((dim.name, 1),)) and len(others) <= 1 and taps.issuperset(others)
        forward = all(x.coef(name) > 0 for name in others)
        if dim.extent > 1 and alone and forward and x.coef(dim.name) in STEPS:
            return dim
    return None


def _rows_of(contraction: Contraction) -> Dim | None:
    """The rows that one tile computes several of: those with taps, else the fastest ones."""
    column, rows = _pixels_of(contraction), list[tuple[bool, int, Dim]]()
    for dim in contraction.by_role("m"):
        axis = _axis_of(contraction, dim)
        if dim == column or axis is None:
            continue
        taps = _taps_along(contraction, dim)
        index = contraction.a.index[axis]
        if index.coef(dim.name) > 0 and all(index.coef(tap.name) > 0 for tap in taps):
            rows.append((bool(taps), axis, dim))
    return max(rows, key=lambda row: row[:2])[2] if rows else None


def _axis_of(contraction: Contraction, dim: Dim) -> int | None:
    """The only axis of x that a dimension indexes."""
    axes = [at for at, index in enumerate(contraction.a.index) if index.coef(dim.name)]
    return axes[0] if len(axes) == 1 else None


def _taps_along(contraction: Contraction, dim: Dim) -> list[Dim]:
    """The taps on an axis of x that a dimension indexes."""
    axes = [index for index in contraction.a.index if index.coef(dim.name)]
    taps = [d for d in contraction.by_role("br") if d.extent > 1]
    return [tap for tap in taps if any(index.coef(tap.name) for index in axes)]


def _window(contraction: Contraction, dim: Dim | None) -> FilterAxis:
    if dim is None:
        return FilterAxis(None, None, 1, 1, 1)
    index = next(index for index in contraction.a.index if index.coef(dim.name))
    taps = _taps_along(contraction, dim)
    if not taps:
        return FilterAxis(dim.name, None, index.coef(dim.name), 1, 1)
    tap = taps[0]
    return FilterAxis(dim.name, tap.name, index.coef(dim.name), index.coef(tap.name), tap.extent)
