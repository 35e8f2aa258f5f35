"""The microkernels of ``group_i8.h`` in NumPy: words of four 8-bit numbers in a group's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from polysci.loop_ir.memory import Pointer
from polysci.loop_ir.microkernels import (
    Accumulators,
    Fields,
    TileView,
    User,
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


WORDS: Final[Mapping[str, Callable[..., Any]]] = {
    "ps_copy_word": _copy_word,
    "ps_copy_words": _copy_words,
    "ps_run_words": _run_words,
}
