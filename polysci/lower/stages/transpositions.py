"""Loops along which one tensor jumps while another one runs on: by blocks of both."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from polysci.lower.stages.access import MemoryAccess

TURNED: Final = 64  # elements along each axis from which on a transposition goes by blocks
BLOCK: Final = 16  # of elements along both: a cache line of floats
ALIASED: Final = 256  # lines so many floats apart share few sets of an L1 of 8 ways


def turn_iterator(
    accesses: Collection[MemoryAccess], extents: Mapping[str, int], outer: Sequence[str], last: str
) -> str:
    """The iterator along which a tensor runs on that jumps from element to element of y.

    Empty where there is none, or a row of y reads few cache lines.
    """
    if extents[last] < TURNED:
        return ""
    across = [
        name
        for access in accesses
        for name in outer
        if access.terms.get(name) == 1 and abs(access.terms.get(last, 0)) >= TURNED
    ]
    return across[0] if across and extents[across[0]] >= TURNED else ""


def block_size(accesses: Collection[MemoryAccess], turned: str, last: str) -> int:
    """Elements of a block along both loops, so that its lines stay in the cache."""
    jumps = [access.terms.get(last, 0) for access in accesses if access.terms.get(turned) == 1]
    return BLOCK if any(jump % ALIASED for jump in jumps) else BLOCK // 2
