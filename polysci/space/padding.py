"""Cuts of tiles by the padding: which positions of a tile read inside the image, tap by tap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from polysci.errors import UnsupportedError
from polysci.numerics.dtypes import DTYPES
from polysci.polyhedral.contraction import Contraction, Dim
from polysci.space.stencil_roles import is_stencil
from polysci.target.coefficients import prior_of


@dataclass(frozen=True, slots=True)
class Piece:
    """Tiles of one dimension that share code: origins ``first, first + step .. last``.

    ``masks`` holds, for every value of the filter dimension on the same axis, which positions of
    the tile read inside the image (bit i: position i); empty if the dimension is never cut.
    """

    first: int
    last: int
    step: int
    size: int
    masks: tuple[int, ...] = ()

    @property
    def origins(self) -> range:
        return range(self.first, self.last + 1, self.step)


def leaves(contraction: Contraction, axis: int) -> bool:
    """Return whether an axis of A is read outside its bounds."""
    affine = contraction.a.index[axis]
    ends = [coef * (contraction.extent(name) - 1) for name, coef in affine.terms]
    low = affine.const + sum(end for end in ends if end < 0)
    high = affine.const + sum(end for end in ends if end > 0)
    return low < 0 or high >= contraction.a.shape[axis]


def cuts(
    extent: int, step: int, masks_at: Mapping[int, tuple[int, ...]] | None = None
) -> tuple[Piece, ...]:
    """Group the tiles of one dimension into runs of equal size and equal masks."""
    if masks_at is None:
        whole = extent - extent % step
        pairs = ((0, whole, step), (whole, extent, extent - whole))
        return tuple(
            Piece(first, first + (last - first - 1) // step * step, step, size)
            for first, last, size in pairs
            if first < last
        )
    runs: list[tuple[int, int, int, tuple[int, ...]]] = []  # first, last, size, masks
    for origin in range(0, extent, step):
        masks = masks_at[origin]
        size = min(step, extent - origin)
        if runs and runs[-1][2:] == (size, masks):
            runs[-1] = (runs[-1][0], origin, size, masks)
        else:
            runs.append((origin, origin, size, masks))
    return tuple(Piece(first, last, step, size, masks) for first, last, size, masks in runs)


def cut_axes(contraction: Contraction) -> dict[str, tuple[int, str | None]]:
    """Row dimensions that may read outside A: the axis, and the filter dimension on it."""
    axes: dict[str, tuple[int, str | None]] = {}
    for axis, affine in enumerate(contraction.a.index):
        if not leaves(contraction, axis):
            continue
        on_axis = [d for d in contraction.dims if affine.coef(d.name)]
        rows = [d for d in on_axis if d.role in ("m", "n")]  # columns, of a stencil
        taps = [d for d in on_axis if d.role == "br"]
        twice = any(d.name in axes for d in rows)
        if len(rows) != 1 or len(taps) > 1 or len(on_axis) > len(rows + taps) or twice:
            raise UnsupportedError(
                f"cannot cut axis {axis} of {contraction.a}: only a row of the result, alone or "
                "with one reduction, may leave an array"
            )
        axes[rows[0].name] = (axis, taps[0].name if taps else None)
    return axes


def masks_of(
    contraction: Contraction, dim: Dim, step: int, axis: int, tap: str | None
) -> dict[int, tuple[int, ...]]:
    """Return by tile origin of ``dim`` the mask of valid positions for each value of ``tap``."""
    affine, limit = contraction.a.index[axis], contraction.a.shape[axis]
    taps = next((d.extent for d in contraction.dims if d.name == tap), 1)
    along, across = affine.coef(dim.name), affine.coef(tap) if tap else 0
    return {
        origin: tuple(
            sum(
                1 << i
                for i in range(min(step, dim.extent - origin))
                if 0 <= (origin + i) * along + t * across + affine.const < limit
            )
            for t in range(taps)
        )
        for origin in range(0, dim.extent, step)
    }


@lru_cache(maxsize=64)
def valid_share(contraction: Contraction) -> float:
    """Share of the multiplications that read inside the image; 1 where tiles cannot be cut."""
    share, extents = 1.0, {d.name: d for d in contraction.dims}
    try:
        axes = cut_axes(contraction)
    except UnsupportedError:
        return 1.0
    for name, (axis, tap) in axes.items():
        if extents[name].role == "n":
            continue  # lanes in the padding are masked, and no multiplication less
        masks = masks_of(contraction, extents[name], extents[name].extent, axis, tap)[0]
        share *= sum(mask.bit_count() for mask in masks) / (extents[name].extent * len(masks))
    return share


def skips(contraction: Contraction, *, packed: bool) -> bool:
    """Return whether tiles leave the padding out.

    Its copy holds what x holds for zero, so that whole tiles can be computed: of whole numbers,
    where zero need not be 0; where runs are short, which join across taps; and of others unless
    much of the work would be in vain.
    """
    if not packed:
        return True
    depth = prod(d.extent for d in contraction.by_role("k"))
    whole, short = DTYPES[contraction.a.dtype].integer, 1 < depth < prior_of("least_run")
    return not whole and not short and valid_share(contraction) < prior_of("worth_cutting")


def share_of_work(contraction: Contraction, *, packed: bool) -> float:
    """Share of the multiplications that are carried out."""
    return valid_share(contraction) if skips(contraction, packed=packed) else 1.0


def cut(
    contraction: Contraction, tile: Mapping[str, int], *, packed: bool
) -> tuple[dict[str, tuple[Piece, ...]], dict[str, str]]:
    """Pieces of every tiled dimension, and the row dimensions that clip a tap loop at run time.

    A dimension of one position a tile clips the range of its filter loop; a wider one gets a
    piece for every pattern of padded positions, and so does any of a stencil, which has no loop.
    """
    stencil = is_stencil(contraction)
    cut_by = cut_axes(contraction) if skips(contraction, packed=packed) else {}
    pieces: dict[str, tuple[Piece, ...]] = {}
    ranges: dict[str, str] = {}
    for dim in contraction.dims:
        step, masks = tile[dim.name], None
        if dim.role == "br":
            if step < dim.extent:
                pieces[dim.name] = cuts(dim.extent, step)
            continue
        if dim.name in cut_by:
            axis, tap = cut_by[dim.name]
            ranged = not stencil and step == 1 and tap is not None
            if ranged and tap is not None and _ranges(contraction, cut_by, axis, tap):
                ranges[tap] = dim.name
            elif tap is not None and tile[tap] < contraction.extent(tap):
                raise UnsupportedError(
                    f"the padding of {contraction.a} cuts {tap!r} and {dim.name!r}: a loop over "
                    f"{tap!r} needs one position of {dim.name!r} a tile, not {step}"
                )
            else:
                masks = masks_of(contraction, dim, step, axis, tap)
        pieces[dim.name] = cuts(dim.extent, step, masks)
    return pieces, ranges


def _ranges(
    contraction: Contraction, cut_by: Mapping[str, tuple[int, str | None]], axis: int, tap: str
) -> bool:
    """Return whether a range of a tap, counted upwards, can tell which of them read inside A."""
    alone = sum(other == tap for _, other in cut_by.values()) == 1
    return alone and contraction.a.index[axis].coef(tap) > 0
