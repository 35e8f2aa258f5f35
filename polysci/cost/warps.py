"""Turns of memory that a warp's accesses take, counted from the addresses of its work-items.

Memory of a group has 32 banks of 4 bytes: in a clock, a wavefront, each bank gives one word, to
whoever reads it (CUDA C++ Programming Guide, shared memory of compute capability 5.0 and later).
What is counted for wider accesses is the least that banks allow; hardware may take more turns for
them. Memory of the device comes in sectors of 32 bytes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int64]  # of 4 bytes: instructions x items of a warp x words that an item takes
Active = NDArray[np.bool_]  # instructions x items: those that take part

BANKS: Final = 32
SECTOR_WORDS: Final = 8
SECTOR: Final = 4 * SECTOR_WORDS  # bytes


def wavefronts(words: Words, active: Active) -> tuple[int, int]:
    """Return the wavefronts of all instructions, and those that fewer conflicts would allow.

    Of each instruction those are the most words that a bank must give; the least are those of words
    that lie in the banks evenly.
    """
    number, word = _distinct(words, active)
    counts = np.bincount(number * BANKS + word % BANKS, minlength=len(words) * BANKS)
    counts = counts.reshape(-1, BANKS)
    return int(counts.max(axis=1).sum()), int((-(-counts.sum(axis=1) // BANKS)).sum())


def sectors(words: Words, active: Active) -> int:
    """Return the sectors of all instructions."""
    return len(_distinct(words // SECTOR_WORDS, active)[0])


def _distinct(words: Words, active: Active) -> tuple[Words, Words]:
    """Return each word that an instruction takes once, behind the instruction's number."""
    span = int(words.max(initial=0)) + 1
    numbered = words + span * np.arange(len(words))[:, None, None]
    taken = numbered[np.broadcast_to(active[:, :, None], words.shape)]
    number, word = np.divmod(np.unique(taken), span)
    return number, word
