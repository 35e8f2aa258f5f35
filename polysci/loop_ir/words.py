"""The microkernels of 8-bit numbers in a group's memory in NumPy: of words and of warps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from polysci.loop_ir.group_tiles import GROUP_TILES
from polysci.loop_ir.memory import Pointer
from polysci.loop_ir.microkernels import (
    Accumulators,
    Fields,
    Integers,
    TileView,
    User,
    add_products,
    read_values,
)


def _copy_word(user: User, to: Pointer, source: Pointer, real: bool, zero: int) -> None:
    """Copy a word of neighbours; ``zero`` in all places where they are not real."""
    places = np.arange(user.unit.word)
    zeros = user.unit.encode(np.full(len(places), zero), "ps_x")
    user.write(to, places, user.read(source, places) if real else zeros)


def _copy_words(user: User, to: Pointer, source: Pointer) -> None:
    """Copy words of neighbouring columns."""
    places = np.arange(user.unit.lanes * user.unit.word)
    user.write(to, places, user.read(source, places))


def _run_words(
    user: User, acc: Accumulators, t: Fields, a: Pointer, b: Pointer, words: int, a_line: int,
    b_line: int, apart: int,
) -> None:  # fmt: skip
    """Add products of lines of words, of which this work-item takes its own part."""
    tile, word, lines = TileView(user.unit, t), user.unit.word, np.arange(words)[:, None, None]
    vectors, lanes = np.divmod(np.arange(tile.width), user.unit.lanes)
    rows = lines * a_line + np.arange(tile.rows)[:, None]
    columns = lines * b_line + (vectors * apart + lanes)[:, None]
    left = user.unit.decode(user.read(a, rows * word + np.arange(word)), "ps_rows")
    right = user.unit.decode(user.read(b, columns * word + np.arange(word)), "ps_columns")
    with np.errstate(over="ignore"):  # they wrap around
        acc.sums[0] += np.einsum("kre,kje->rj", left, right).astype(acc.sums.dtype)


def _read_words(
    user: User, acc: Accumulators, t: Fields, x: Pointer, places: Pointer, a_k: int, whole: int,
    zero: int, b: Pointer, b_line: int, depth: int, apart: int,
) -> None:  # fmt: skip
    """Add products of ``depth`` steps of rows of x, at their places, and of a panel's words."""
    tile, word = TileView(user.unit, t), user.unit.word
    lines, (vectors, lanes) = np.arange(depth), np.divmod(np.arange(tile.width), user.unit.lanes)
    columns = lines[:, None] // word * word * b_line + (vectors * apart + lanes) * word
    right = read_values(user, b, columns + lines[:, None] % word, "ps_b")
    at = np.asarray(user.read(places, np.arange(tile.rows)))
    left = np.full((tile.rows, depth), zero, np.int64)
    left[at >= 0] = read_values(user, x, at[at >= 0, None] + lines * a_k, "ps_x")
    add_products(acc, np.arange(tile.rows), left @ right)


def _run_warp_words(
    user: User, acc: Accumulators, t: Fields, a: Pointer, b: Pointer, depth: int, a_line: int,
    b_line: int, a_chunks: int, b_chunks: int, lane: int,
) -> None:  # fmt: skip
    """Add products of ``depth`` steps, of which this work-item of a warp has its own part."""
    tile, steps = TileView(user.unit, t), np.arange(depth)
    rows = (lane // 4 + 8 * np.arange(tile.rows))[:, None]
    columns = np.arange(tile.vecs)[:, None] * 8 + lane % 4 * 2 + np.arange(2)
    columns = columns.reshape(-1)[:, None]
    left = user.read(a, rows * a_line + _in_chunks(rows, steps, a_chunks))
    right = user.read(b, columns * b_line + _in_chunks(columns, steps, b_chunks))
    products = user.unit.decode(left, "ps_rows") @ user.unit.decode(right, "ps_columns").T
    held = (np.arange(tile.vecs)[:, None] * user.unit.lanes + np.arange(2)).reshape(-1)
    with np.errstate(over="ignore"):
        acc.sums[0][:, held] += products.astype(acc.sums.dtype)


def _in_chunks(line: Integers, at: Integers, chunks: int) -> Integers:
    """Return the places of elements in a line whose chunks of 16 change places."""
    if not chunks:
        return at + 0 * line
    few = min(chunks, 8)
    return np.asarray((at // 16 ^ line // (8 // few) % few) * 16 + at % 16)


def _filled(copy: str) -> Callable[..., None]:
    """Return the copy of a chunk of x; where it is not real of what x holds for 0, at once."""

    def run(user: User, to: Pointer, source: Pointer, real: bool, zero: int) -> None:
        if real:
            GROUP_TILES[copy](user, to, source, real)
            return
        places = np.arange(16)
        user.write(to, places, user.unit.encode(np.full(len(places), zero), "ps_x"))

    return run


WORDS: Final[Mapping[str, Callable[..., Any]]] = {
    "ps_copy_word": _copy_word,
    "ps_copy_words": _copy_words,
    "ps_run_words": _run_words,
    "ps_read_words": _read_words,
    "ps_held_words": _read_words,
    "ps_run_warp_words": _run_warp_words,
    "ps_copy_chunk_filled": _filled("ps_copy_chunk"),
    "ps_copy_async_filled": _filled("ps_copy_async"),
}
