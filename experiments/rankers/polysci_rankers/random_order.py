"""The random ranker: a hash of the schedule's text."""

from __future__ import annotations

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from polysci.cost.estimate import Context
from polysci.polyhedral.footprint import Count
from polysci.space.directives import Stream
from polysci.space.enumerate import Family
from polysci_rankers.trip_counts import trip_counts

Words = NDArray[np.uint64]
WEYL, MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
HALF, KEPT = np.uint64(32), np.uint64(11)  # 64 - 11 bits fill the fraction of a float


def random_order(context: Context, family: Family) -> Count:
    """A hash of every schedule, in [0, 1): the same in any family, process and machine.

    Loops that run once do not appear in a schedule's text and do not count.
    """
    nest = trip_counts(family)
    hashes, pack = np.full(len(family), WEYL), np.uint64(2 * family.pad + 1)
    for position, dim in enumerate(family.dims):
        hashes = np.where(family.pack == position, _mix(hashes, pack), hashes)
        loop = _mix(hashes, np.uint64(crc32(dim.encode())))
        step = 2 * family.steps[:, position] + (position < family.parallel)
        loop = _mix(loop, step.astype(np.uint64))
        hashes = np.where(nest.running(position), loop, hashes)
    hashes = np.where(family.pack == len(family.dims), _mix(hashes, pack), hashes)
    kernels = np.array([crc32(str(tile.kernel).encode()) for tile in family.tiles], dtype=np.uint64)
    hashes = _mix(_mix(hashes, kernels[family.which]), family.has(Stream).astype(np.uint64))
    return (hashes >> KEPT).astype(np.float64) * 2.0**-53


def _mix(hashes: Words, word: Words | np.uint64) -> Words:
    """Mix a word into the hashes; multiplication wraps at 64 bits."""
    hashes = (hashes ^ (word + WEYL)) * MIX
    hashes = (hashes ^ (hashes >> HALF)) * MIX
    mixed: Words = hashes ^ (hashes >> HALF)
    return mixed
