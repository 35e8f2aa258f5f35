"""The microkernels of tiles of a group's work-items in NumPy, whose factors lie in its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from polysci.loop_ir.memory import Array, Pointer
from polysci.loop_ir.microkernels import (
    Accumulators,
    Fields,
    Integers,
    TileView,
    User,
    add_products,
    add_residual,
    end_tile,
    finish,
    read_values,
    shift_sums,
)


def _copy_across(user: User, to: Pointer, line: int, x: Pointer, real: bool) -> None:
    """Copy a vector of neighbours into as many lines; zeros where they are not real."""
    lanes = np.arange(user.unit.lanes)
    vector = read_values(user, x, lanes, "ps_x") if real else np.zeros(len(lanes), np.float32)
    user.write(to, lanes * line, vector)


def _copy_along(user: User, to: Pointer, source: Pointer) -> None:
    """Copy a vector of neighbours into one line."""
    lanes = np.arange(user.unit.lanes)
    user.write(to, lanes, user.read(source, lanes))


def _copy_chunk(user: User, to: Pointer, source: Pointer, real: bool) -> None:
    """Copy 16 bytes of neighbours; zeros where they are not real."""
    user.write(to, *_chunk(user, source, real))


def _copy_async(user: User, to: Pointer, source: Pointer, real: bool) -> None:
    """Begin to copy 16 bytes: what lies there has no values until a wait ends the copy."""
    places, elements = _chunk(user, source, real)
    user.write(to, places, elements)
    to.memory.written[to.place(places)] = False
    user.copies[-1].append((to, places, elements))


def _chunk(user: User, source: Pointer, real: bool) -> tuple[Integers, Array]:
    """Return the places in 16 bytes, and the elements there."""
    places = np.arange(16 // source.dtype.itemsize)
    return places, user.read(source, places) if real else np.zeros(len(places), source.dtype)


def _commit(user: User) -> None:
    """End a group of copies."""
    user.copies.append([])


def _await(user: User, pending: int) -> None:
    """End the copies of all groups but the last ones, which go on for as long as they may."""
    while len(user.copies) > pending + 1:
        for copy in user.copies.pop(0):
            user.write(*copy)


def _run_warp(
    user: User, acc: Accumulators, t: Fields, a: Pointer, b: Pointer, depth: int, a_line: int,
    b_line: int, a_chunks: int, b_chunks: int, column: int, lane: int,
) -> None:  # fmt: skip
    """Add products of ``depth`` steps, of which this work-item of a warp has its own part."""
    tile = TileView(user.unit, t)
    steps, rows = np.arange(depth), lane // 4 + 8 * np.arange(tile.rows)
    places = np.arange(tile.vecs)[:, None] * 8 + lane % 4 * 2 + np.arange(2)
    left = _in_chunks(rows[:, None], steps, a_chunks) + rows[:, None] * a_line
    right = _in_chunks(steps[:, None], column + places.reshape(-1), b_chunks)
    products = read_values(user, a, left, "ps_shared") @ read_values(
        user, b, right + steps[:, None] * b_line, "ps_shared"
    )
    held = (np.arange(tile.vecs)[:, None] * user.unit.lanes + np.arange(2)).reshape(-1)
    acc.sums[0][:, held] += products


def _in_chunks(line: Integers, at: Integers, chunks: int) -> Integers:
    """Return the places of elements in a line whose chunks of 8 change places."""
    if not chunks:
        return np.asarray(at + 0 * line)
    few = min(chunks, 8)
    return np.asarray((at // 8 ^ line // (8 // few) % few) * 8 + at % 8)


def _run_lines(
    user: User, acc: Accumulators, t: Fields, a: Pointer, b: Pointer, depth: int, a_line: int,
    b_line: int, apart: int,
) -> None:  # fmt: skip
    """Add products of ``depth`` lines of A and B, of which this work-item takes its own part."""
    tile, steps = TileView(user.unit, t), np.arange(depth)[:, None]
    vectors, lanes = np.divmod(np.arange(tile.width), user.unit.lanes)
    rows = user.read(a, steps * a_line + np.arange(tile.rows))
    columns = user.read(b, steps * b_line + vectors * apart + lanes)
    add_products(acc, np.arange(tile.rows), np.einsum("kr,kj->rj", rows, columns))


def _read_vectors(
    user: User, b: Pointer, steps: Integers, b_k: int, b_col: int, columns: int, apart: int,
    vecs: int, name: str = "ps_b",
) -> Array:  # fmt: skip
    """Return vectors of columns below ``columns`` for some steps; zeros behind them.

    With a ``b_col`` of 0 they lie in a panel, which has all of them.
    """
    places = (np.arange(vecs)[:, None] * apart + np.arange(user.unit.lanes)).ravel()
    real = places < (columns if b_col else places.max() + 1)
    lines = np.zeros((len(steps), len(places)), np.float32)
    lines[:, real] = read_values(user, b, steps[:, None] * b_k + places[real] * (b_col or 1), name)
    return lines


def _real_rows(user: User, tile: TileView, places: Pointer) -> tuple[Integers, Integers]:
    """Return the rows of a tile that are real, and their places."""
    at = np.asarray(user.read(places, np.arange(tile.rows)))
    (rows,) = np.nonzero(at >= 0)
    return rows, at[rows]


def _read_rows(
    user: User, acc: Accumulators, t: Fields, x: Pointer, places: Pointer, a_k: int, b: Pointer,
    b_k: int, b_col: int, depth: int, columns: int, apart: int,
) -> None:  # fmt: skip
    """Add products of ``depth`` steps of rows of x, at their places, and of columns of B."""
    tile, steps = TileView(user.unit, t), np.arange(depth)
    rows, at = _real_rows(user, tile, places)
    left = read_values(user, x, at[:, None] + steps * a_k, "ps_x")
    lines = _read_vectors(user, b, steps, b_k, b_col, columns, apart, tile.vecs)
    add_products(acc, rows, np.einsum("rk,kj->rj", left, lines))


def _read_channels(
    user: User, acc: Accumulators, t: Fields, x: Pointer, places: Pointer, a_k: int, a_col: int,
    b: Pointer, b_k: int, b_col: int, depth: int, columns: int, apart: int,
) -> None:  # fmt: skip
    """Add products of ``depth`` steps of rows of x and of B, both vectors along the columns."""
    tile, steps = TileView(user.unit, t), np.arange(depth)
    lines = _read_vectors(user, b, steps, b_k, b_col, columns, apart, tile.vecs)
    for row, at in zip(*_real_rows(user, tile, places), strict=True):
        own = _read_vectors(
            user, x.move(int(at)), steps, a_k, a_col, columns, apart, tile.vecs, "ps_x"
        )
        add_products(acc, np.array([row]), (own * lines).sum(axis=0)[None])


_ONE: Final = {"c_outer": 0, "c_inner": 0, "begun": 0}  # fields of a tile of one row


def _end_lines(
    user: User, acc: Accumulators, t: Fields, places: Pointer, rows: int, columns: int,
    apart: int, y: Pointer, e: Fields,
) -> None:  # fmt: skip
    """Finish and store the first ``rows`` rows, each at its place, and columns below ``columns``.

    Vectors of columns are ``apart`` from each other.
    """
    for sums, piece, first, place in _pieces(user, acc, t, places, rows, columns, apart):
        c = place + first * piece["c_col"]
        one, moves = Accumulators(1), {"bias": first, "offset": first, "scale": first}
        moves["residual"], one.sums = c, sums
        own = {name: e[name].move(by) if e[name] else 0 for name, by in moves.items()}
        end_tile(user, one, piece, y.move(c), {**e, **own})


def _add_lines(
    user: User, acc: Accumulators, t: Fields, places: Pointer, rows: int, columns: int,
    apart: int, residual: Pointer, e: Fields,
) -> None:  # fmt: skip
    """Do to the same sums what comes before activation and clamp, with a residual at places.

    Below 0 there is none. Whole sums that are scaled now are the bits of reals.
    """
    for sums, piece, first, place in _pieces(user, acc, t, places, rows, columns, apart):
        tile, moves = TileView(user.unit, piece), ("bias", "offset", "scale")
        own = {**e, **{name: e[name].move(first) if e[name] else 0 for name in moves}}
        result = shift_sums(user, tile, sums[0], own)
        if place >= 0:
            at = place + first * tile.c_col + tile.c
            result = add_residual(user, result, read_values(user, residual, at, "ps_y"), e)
        sums[...] = result.view(sums.dtype)


def _end_rest(
    user: User, acc: Accumulators, t: Fields, places: Pointer, rows: int, columns: int,
    apart: int, y: Pointer, e: Fields,
) -> None:  # fmt: skip
    """Finish and store these sums."""
    scaled = user.unit.formats["ps_bias"].integer and user.unit.y != "s32"
    for sums, piece, first, place in _pieces(user, acc, t, places, rows, columns, apart):
        tile = TileView(user.unit, piece)
        result = finish(user, sums[0].view(np.float32) if scaled else sums[0], e)
        user.write(y.move(place + first * tile.c_col), tile.c, user.unit.encode(result, "ps_y"))


def _pieces(
    user: User, acc: Accumulators, t: Fields, places: Pointer, rows: int, columns: int, apart: int
) -> Iterator[tuple[Array, Fields, int, int]]:
    """Yield the sums of each vector of a row, their tile and column, and the place of the row."""
    tile = TileView(user.unit, t)
    for row in range(min(tile.rows, max(rows, 0))):
        for vector in range(tile.vecs):
            first, start = vector * apart, vector * user.unit.lanes
            used = min(columns - first, tile.lanes)
            if used <= 0:
                continue
            piece = {"rows": 1, "vecs": 1, "wrap": 1, "lanes": used, "c_col": tile.c_col}
            sums = acc.sums[:, row : row + 1, start : start + used]
            yield sums, {**_ONE, **piece}, first, int(user.read(places, row))


GROUP_TILES: Final[Mapping[str, Callable[..., Any]]] = {
    "ps_copy_across": _copy_across,
    "ps_copy_along": _copy_along,
    "ps_copy_chunk": _copy_chunk,
    "ps_copy_async": _copy_async,
    "ps_commit": _commit,
    "ps_await": _await,
    "ps_run_lines": _run_lines,
    "ps_read_rows": _read_rows,
    "ps_read_channels": _read_channels,
    "ps_held_rows": _read_rows,
    "ps_held_channels": _read_channels,
    "ps_run_warp": _run_warp,
    "ps_end_lines": _end_lines,
    "ps_keep_lines": _end_lines,
    "ps_end_rest": _end_rest,
    "ps_keep_rest": _end_rest,
    "ps_add_lines": _add_lines,
    "ps_add_held": _add_lines,
}
