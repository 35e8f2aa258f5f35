"""The microkernels of weights in blocks in NumPy: ``microkernels/blocks.h``.

A block of a panel holds the scales of all columns, their zeros, then the numbers, a word of k a
column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from polysci.loop_ir.memory import STORED, Pointer
from polysci.loop_ir.microkernels import Accumulators, Fields, TileView, User
from polysci.numerics.blocks import decode_blocks, round_blocks
from polysci.numerics.dtypes import BLOCK_TYPES, COMPUTES


def _block_dtype(user: User, numbers: int) -> np.dtype[Any]:
    """Return the structure of a column's block of so many numbers."""
    return BLOCK_TYPES[f"{user.unit.w}x{numbers}"].numpy


def _pack_block(
    user: User, to: Pointer, w: Pointer, apart: int, numbers: int, width: int, real: int
) -> None:
    """Write a block of a panel of ``width`` columns, of which w has ``real``."""
    dtype, columns = _block_dtype(user, numbers), min(width, real)
    size = dtype.itemsize
    rows = np.zeros((width, size), np.uint8)
    places = np.arange(columns)[:, None] * apart + np.arange(size)
    rows[:columns] = user.read(w.cast(STORED["uint8"]), places)
    heads = 4 * (len(dtype.names or ()) - 1)
    word = 4 if "nibbles" in (dtype.names or ()) else 1
    words = rows[:, heads:].reshape(width, -1, word).swapaxes(0, 1)
    parts = [rows[:, at : at + 4] for at in range(0, heads, 4)]
    packed = np.concatenate([*(part.ravel() for part in parts), words.ravel()])
    user.write(to, np.arange(len(packed)), packed)


def _run_blocks(
    user: User, acc: Accumulators, t: Fields, mask: int, a: Pointer, b: Pointer, length: int,
    a_k: int,
) -> None:  # fmt: skip
    """Add products by ``length`` blocks of a panel."""
    tile, numbers = TileView(user.unit, t), int(t["block"])
    dtype, active = _block_dtype(user, numbers), tile.active(mask)
    size, heads = dtype.itemsize * tile.width, 4 * (len(dtype.names or ()) - 1)
    word = 4 if "nibbles" in (dtype.names or ()) else 1
    for step in range(length):
        panel = user.read(b, step * size + np.arange(size))
        parts = panel[: heads * tile.width].reshape(-1, tile.width, 4)
        words = panel[heads * tile.width :].reshape(-1, tile.width, word).swapaxes(0, 1)
        rows = np.concatenate([*parts, words.reshape(tile.width, -1)], 1)
        blocks = np.ascontiguousarray(rows).view(dtype)
        at = tile.a_rows[active][:, None] + step * a_k + np.arange(numbers)
        x = user.unit.decode(user.read(a, at), "ps_a")
        split = COMPUTES[user.unit.compute].bytes_of_x
        x = round_blocks(x, numbers, split) if split and not user.unit.packed_copy else x
        acc.sums[0, active] += x @ decode_blocks(blocks).T


def _pack_blocks(
    user: User, box: Pointer, x: Pointer, row: Fields, first: int, blocks: int
) -> None:
    """Copy pixels in the values that their bytes have; C stores the bytes themselves."""
    split, numbers = COMPUTES[user.unit.compute].bytes_of_x, int(row["x_channel"])
    pixels = np.arange(min(row["pixels"], row["limit"] - first))[:, None]
    at = np.arange(blocks * numbers)
    values = user.read(x, (first + pixels) * row["x_pixel"] + at)
    user.write(box, pixels * row["box_pixel"] + at, round_blocks(values, numbers, split))


BLOCKS: Final[Mapping[str, Callable[..., Any]]] = {
    "ps_run_blocks": _run_blocks,
    "ps_pack_block": _pack_block,
    "ps_pack_blocks": _pack_blocks,
}
