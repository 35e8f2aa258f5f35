"""The reduction of a stencil's tile: calls for columns of the filter's taps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from math import prod

from polysci.loop_ir.index import IndexLike, Variable, as_index
from polysci.loop_ir.nodes import Address, Fields, Invoke, Let, LoopStatement, Named, Value, loop
from polysci.space.padding import Piece
from polysci.space.resolve import Plan
from polysci.space.stencil_roles import FilterAxis, windows_of

MOST_UNROLLED = 768  # multiplications of vectors in one call, or in a row of them without a loop

Columns = tuple[int, int, int, int]  # taps: the first, how many; elements of x: the first, the end


def stencil_calls(plan: Plan, pieces: Mapping[str, Piece]) -> list[LoopStatement]:
    """Return the statements that accumulate one tile; none if all of it lies in the padding.

    Which rows of x lie inside the image, and which elements of a row a call reads, are constants:
    ``pieces`` says which pixels of a tile every tap reads inside.
    """
    rows, columns = windows_of(plan.contraction)
    lanes, size = plan.kernel.lanes, pieces[plan.column].size
    work = rows.taps * prod(pieces[dim].size for dim in plan.rows) * -(-size // lanes)
    top, bottom = _real_rows(rows, pieces)
    calls = list(_columns(columns, pieces, _together(plan, columns, work)))
    if top >= bottom or not calls:
        return []
    fields = {
        "taps": rows.taps,
        "apart": rows.apart,
        "step": rows.step,
        "every": columns.step,
        "across": columns.apart,
        "top": top,
        "bottom": bottom,
        "row": plan.coef["x"][rows.dim] // rows.step if rows.dim else 0,
        "b_row": columns.taps,
    }
    return [
        Let("f", Fields(tuple(fields.items())), "ps_window", static=True),
        *_statements(columns.apart, calls, work),
    ]


def _together(plan: Plan, columns: FilterAxis, work: int) -> int:
    """Columns of taps a call: all that a vector and its neighbour hold, or those one load brings.

    ``work`` are the multiplications of one column.
    """
    neighbours = columns.step if columns.apart == 1 else 1
    if not plan.kernel.shifts_pixels:
        return neighbours
    reach = (plan.kernel.lanes - 1) * columns.step // columns.apart + 1
    most = max(1, min(reach, MOST_UNROLLED // work))
    even = -(-columns.taps // -(-columns.taps // most))
    return max(neighbours, even // neighbours * neighbours)


def _statements(apart: int, calls: list[Columns], work: int) -> Iterator[LoopStatement]:
    """The calls, with loops over many that read alike; ``work`` as in ``_together``."""
    for (count, left, right), group in groupby(calls, key=lambda call: call[1:]):
        taps = [call[0] for call in group]
        if len(taps) > 1 and len(taps) * count * work > MOST_UNROLLED:
            s = Variable("s")
            body = _call(apart * s, s, count, left, right)
            yield loop("s", taps[-1] + 1, body, start=taps[0], step=count)
            continue
        for tap in taps:
            yield _call(apart * tap, tap, count, left, right)


def _call(a: IndexLike, b: IndexLike, count: int, left: int, right: int) -> LoopStatement:
    """The call for some columns of taps, at offsets ``a`` and ``b`` of A and B."""
    places = (Address(Named("A"), as_index(a)), Address(Named("B"), as_index(b)))
    operands: list[Value] = [*map(Named, ("acc", "t", "f")), *places, count, left, right]
    return Invoke("ps_run_window", tuple(operands))


def _real_rows(rows: FilterAxis, pieces: Mapping[str, Piece]) -> tuple[int, int]:
    """Rows of x under a tile that lie inside the image: the first and the end."""
    real = [
        pixel * rows.step + tap * rows.apart
        for tap, mask in enumerate(_masks(rows, pieces))
        for pixel in _pixels(mask)
    ]
    return (min(real), max(real) + 1) if real else (0, 0)


def _columns(columns: FilterAxis, pieces: Mapping[str, Piece], together: int) -> Iterator[Columns]:
    """Columns of taps, so many at a time, and the elements that they read inside the image.

    Elements count from the one that the first of them reads for the tile's first pixel.
    """
    masks = _masks(columns, pieces)
    for first in range(0, columns.taps, together):
        taps = range(first, min(first + together, columns.taps))
        real = [
            pixel * columns.step + (tap - first) * columns.apart
            for tap in taps
            for pixel in _pixels(masks[tap])
        ]
        if real:
            yield first, len(taps), min(real), max(real) + 1


def _pixels(mask: int) -> list[int]:
    """The bits that are set."""
    return [pixel for pixel in range(mask.bit_length()) if mask >> pixel & 1]


def _masks(window: FilterAxis, pieces: Mapping[str, Piece]) -> tuple[int, ...]:
    """For every tap the pixels that read inside the image."""
    piece = pieces.get(window.dim) if window.dim else None
    every = (1 << (piece.size if piece else 1)) - 1
    masks = (piece.masks if piece else ()) or (every,)
    return masks if len(masks) == window.taps else masks * window.taps
