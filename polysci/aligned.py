"""NumPy arrays that start on a 64-byte line; NumPy's own 16 bytes cost up to 15 % of the speed."""

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

ALIGNMENT: Final = 64  # bytes
PAGE: Final = 4096  # bytes
# How far before x, in its page, y best starts. A load waits for an earlier store with the same low
# 12 bits; walks go upwards, so behind x are lines that were read already.
BEHIND: Final = 128  # bytes
F32: Final = np.dtype(np.float32)


def empty(shape: Sequence[int], page_offset: int | None = None) -> NDArray[np.float32]:
    """An uninitialised f32 array, C-contiguous, at a multiple of 64 bytes.

    With ``page_offset`` it starts that many bytes, a multiple of 64, after a page's beginning.
    """
    size = prod(shape)
    step, offset = (ALIGNMENT, 0) if page_offset is None else (PAGE, page_offset)
    memory = np.empty(size + step // 4 - 1, F32)
    first = (offset - memory.ctypes.data) % step // 4
    return memory[first : first + size].reshape(shape)


def copy(array: NDArray[np.float32], page_offset: int | None = None) -> NDArray[np.float32]:
    """An aligned, C-contiguous copy; ``page_offset`` as in ``empty``."""
    result = empty(array.shape, page_offset)
    result[...] = array
    return result
