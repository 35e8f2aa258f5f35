"""NumPy arrays that start on a 64-byte line; NumPy's own 16 bytes cost up to 15 % of the speed."""

import mmap
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Doubles = NDArray[np.float64]

LINE: Final = 64  # bytes of a cache line
ALIGNMENT: Final = LINE
PAGE: Final = 4096  # bytes
HUGE_PAGE: Final = 2 << 20  # bytes
# How far before x, in its page, y best starts. A load waits for an earlier store with the same low
# 12 bits; walks go upwards, so behind x are lines that were read already.
BEHIND: Final = 128  # bytes
F32: Final = np.dtype(np.float32)


def round_up(size: int, step: int = ALIGNMENT) -> int:
    """Return the least multiple of ``step`` that is no less: of bytes, those of whole lines."""
    return -(-size // step) * step


def empty(
    shape: Sequence[int], page_offset: int | None = None, dtype: np.dtype[Any] = F32
) -> NDArray[Any]:
    """Return an uninitialised array, C-contiguous, at a multiple of 64 bytes.

    With ``page_offset`` it starts that many bytes, a multiple of 64, after a page's beginning.
    """
    step, offset = (ALIGNMENT, 0) if page_offset is None else (PAGE, page_offset)
    memory = np.empty(prod(shape) * dtype.itemsize + step - 1, np.uint8)
    return np.ndarray(shape, dtype, memory, (offset - memory.ctypes.data) % step)


def reserve(
    shape: Sequence[int], page_offset: int | None = None, dtype: np.dtype[Any] = F32
) -> NDArray[Any]:
    """Return an array as ``empty`` does, for long-lived memory: packed weights, workspaces.

    From 2 MiB on it begins in a huge page, and the system is asked for such pages: walks over
    weights then wait for fewer translations. Mapping them takes longer than ``empty``.
    """
    size, advice = prod(shape) * dtype.itemsize, getattr(mmap, "MADV_HUGEPAGE", None)
    if size < HUGE_PAGE or advice is None:
        return empty(shape, page_offset, dtype)
    memory = mmap.mmap(-1, size + 2 * HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(advice)
    room = np.frombuffer(memory, np.uint8)
    return np.ndarray(shape, dtype, room, -room.ctypes.data % HUGE_PAGE + (page_offset or 0))


def copy(array: NDArray[Any], page_offset: int | None = None) -> NDArray[Any]:
    """Return an aligned, C-contiguous copy; ``page_offset`` as in ``empty``."""
    result = empty(array.shape, page_offset, array.dtype)
    result[...] = array
    return result


def reserve_copy(array: NDArray[Any], page_offset: int | None = None) -> NDArray[Any]:
    """Return a C-contiguous copy in memory of ``reserve``."""
    result = reserve(array.shape, page_offset, array.dtype)
    result[...] = array
    return result
