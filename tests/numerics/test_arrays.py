"""Aligned arrays: where they start, and which pages they ask for."""

import mmap
import re
from pathlib import Path

import numpy as np
import pytest

from polysci.numerics import arrays

HUGE = arrays.HUGE_PAGE


@pytest.mark.parametrize("make", [arrays.empty, arrays.reserve])
@pytest.mark.parametrize("size", [0, 1, 1000, HUGE - 4, HUGE, HUGE + 4, 3 * HUGE])
def test_arrays_start_on_a_line_or_where_asked_in_a_page(make: object, size: int) -> None:
    assert callable(make)
    for offset, step in ((None, arrays.ALIGNMENT), (1088, arrays.PAGE)):
        array = make([size // 4], offset)
        assert array.nbytes == size // 4 * 4 and array.flags.c_contiguous
        assert array.flags.writeable and array.ctypes.data % step == (offset or 0)
        array[...] = 7.0  # all of it may be written
        assert (array == 7.0).all()


def test_what_lives_long_begins_in_a_huge_page() -> None:
    assert arrays.reserve([HUGE // 4]).ctypes.data % HUGE == 0
    assert arrays.reserve([HUGE // 4], 128).ctypes.data % HUGE == 128
    copied = arrays.reserve_copy(np.arange(HUGE, dtype=np.float32), 192)
    assert copied.ctypes.data % HUGE == 192 and copied[-1] == HUGE - 1


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no madvise for huge pages")
def test_the_system_is_asked_for_huge_pages() -> None:
    array = arrays.reserve([HUGE])
    address = array.ctypes.data
    maps = Path("/proc/self/smaps").read_text()
    part = next(p for p in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", maps) if _holds(p, address))
    flags = next(line for line in part.splitlines() if line.startswith("VmFlags"))
    assert " hg" in flags


def _holds(part: str, address: int) -> bool:
    start, end = (int(word, 16) for word in part.split()[0].split("-"))
    return start <= address < end
