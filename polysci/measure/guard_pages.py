"""Memory between two inaccessible pages: an access outside a buffer crashes or leaves a trace."""

import ctypes
import mmap
import os
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Side = Literal["start", "end"]

_PROT_NONE: Final = 0
_CANARY: Final = 0xA5


class Guarded:
    """``size`` bytes that start right behind one guard page or end right before the other.

    With ``align`` (bytes) the end may stay up to ``align - 1`` bytes short of the guard page; what
    lies between buffer and guard pages is filled with a pattern that ``trespassed`` verifies.
    ``array`` is the buffer as f32 elements, ``raw`` as bytes; both keep the memory alive.
    """

    __slots__ = ("_after", "_before", "_body", "_pages", "array", "raw")

    def __init__(self, size: int, side: Side, align: int = 4) -> None:
        page = mmap.PAGESIZE
        self._body = max(-(-size // page), 1) * page
        # The mapping belongs to the arrays made from it and goes with the last of them.
        self._pages = np.frombuffer(mmap.mmap(-1, self._body + 2 * page), np.uint8)
        self._protect(0, page, _PROT_NONE)
        self._protect(page + self._body, page, _PROT_NONE)
        first = page + (0 if side == "start" else (self._body - size) // align * align)
        self.raw: NDArray[np.uint8] = self._pages[first : first + size]
        self.array: NDArray[np.float32] = self.raw[: size // 4 * 4].view(np.float32)
        self._before = self._pages[page:first]
        self._after = self._pages[first + size : page + self._body]
        self._before[:] = self._after[:] = _CANARY

    def first_trespass(self) -> str | None:
        """Where someone wrote outside the buffer but inside its pages, or None."""
        for where, slack in (("after the end", self._after), ("before the start", self._before)):
            touched = np.flatnonzero(slack != _CANARY)
            if touched.size:
                far = touched[-1] + 1 if slack is self._after else slack.size - touched[0]
                return f"as far as {far} bytes {where}"
        return None

    def freeze(self) -> None:
        """Make the buffer read-only: a write crashes."""
        self._protect(mmap.PAGESIZE, self._body, mmap.PROT_READ)

    def _protect(self, offset: int, size: int, protection: int) -> None:
        address = ctypes.c_void_p(self._pages.ctypes.data + offset)
        if _libc.mprotect(address, ctypes.c_size_t(size), ctypes.c_int(protection)):
            code = ctypes.get_errno()
            raise OSError(code, f"mprotect: {os.strerror(code)}")


_libc = ctypes.CDLL(None, use_errno=True)
