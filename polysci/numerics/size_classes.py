"""Ranges of sizes in parts, each for one program that is compiled for the largest of its sizes.

Layers compute whole register tiles, packed columns and sums over an axis up to the largest size of
a part, so that parts are short where sizes are: up to ``ALONE`` each size is a part, up to ``FINE``
the next part begins at most half as far on again, beyond it at most as far.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

ALONE: Final = 4
FINE: Final = 64


def classes_of(sizes: range) -> tuple[range, ...]:
    """Return the parts of a range of sizes that begins at 1 at least, in order."""
    parts, first = list[range](), sizes[0]
    for end in _ends():
        if end >= first:
            parts.append(range(first, min(end, sizes[-1]) + 1))
            first = end + 1
        if end >= sizes[-1]:
            return tuple(parts)
    raise AssertionError


def _ends() -> Iterator[int]:
    """Yield the last sizes of all parts: 1, 2, 3, 4, 6, 8, 12, 16, .. 64, 128, 256, .."""
    yield from range(1, ALONE)
    size = ALONE
    while True:
        yield size
        if size < FINE:
            yield size + size // 2
        size *= 2
