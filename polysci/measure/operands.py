"""Buffers of a check: an access outside of one crashes, leaves a trace, or makes results NaN.

On the host they lie between two inaccessible pages; on a device with memory of its own between
margins, which hold NaN around what is read and a pattern around what is written.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from polysci.numerics.arrays import Array
from polysci.runtime.backend import Argument, DeviceLibrary
from polysci.runtime.build.library import Library

Side = Literal["start", "end"]

_PROT_NONE: Final = 0
_CANARY: Final = 0xA5
UNSET: Final = 0xFF  # every byte of a buffer before a run, which makes f32 NaN
MARGIN: Final = 4096  # bytes on either side: any device takes a place of that alignment


class CheckedOperand(Protocol):
    """A buffer of a check; ``raw`` are its bytes, as code left them."""

    @property
    def raw(self) -> NDArray[np.uint8]: ...

    def fault(self, name: str) -> str | None:
        """Return what was written that must not be, of an operand of that name; or None."""


class CheckMemory(Protocol):
    """The memory that a library's operands lie in; a check is made for each of ``sides``."""

    @property
    def sides(self) -> tuple[Side, ...]: ...

    def words(self, side: Side) -> str:
        """Say how operands lie, for errors."""

    def reserve(self, size: int, side: Side, align: int) -> CheckedOperand:
        """Return a buffer of bytes that make NaN, to be written."""

    def keep(self, array: Array, side: Side) -> CheckedOperand:
        """Return a buffer with the values of an array, to be read."""

    def freeze(self, operand: Any) -> CheckedOperand:
        """Return what was written as a buffer to be read."""

    def without_margins(self, operand: Any) -> CheckedOperand | None:
        """Return the operand between zeros; None where nothing is known of what is read."""

    def argument(self, operand: Any) -> Argument:
        """Return what functions of the library take for a buffer; for None the null pointer."""

    def place(self, array: Array) -> Argument:
        """Return what they take for an array, without a check; the array must be kept."""


def check_memory(library: DeviceLibrary) -> CheckMemory:
    """Return the memory that checks of a library's code use."""
    return GuardPages(library) if isinstance(library, Library) else Margins(library)


class Guarded:
    """``size`` bytes that start right behind one guard page or end right before the other.

    With ``align`` (bytes) the end may stay up to ``align - 1`` bytes short of the guard page; what
    lies between buffer and guard pages is filled with a pattern that ``first_trespass`` verifies.
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
        """Return where someone wrote outside the buffer but inside its pages, or None."""
        return _first_trespass(self._before, self._after, _CANARY)

    def fault(self, name: str) -> str | None:
        """Return the same of an operand of that name."""
        where = self.first_trespass()
        return where and f"wrote outside {name}: {where}"

    def freeze(self) -> None:
        """Make the buffer read-only: a write crashes."""
        self._protect(mmap.PAGESIZE, self._body, mmap.PROT_READ)

    def _protect(self, offset: int, size: int, protection: int) -> None:
        address = ctypes.c_void_p(self._pages.ctypes.data + offset)
        if _libc.mprotect(address, ctypes.c_size_t(size), ctypes.c_int(protection)):
            code = ctypes.get_errno()
            raise OSError(code, f"mprotect: {os.strerror(code)}")


_libc = ctypes.CDLL(None, use_errno=True)


def _first_trespass(before: Array, after: Array, pattern: int) -> str | None:
    for where, slack in (("after the end", after), ("before the start", before)):
        touched = np.flatnonzero(slack != pattern)
        if touched.size:
            far = touched[-1] + 1 if slack is after else slack.size - touched[0]
            return f"as far as {far} bytes {where}"
    return None


@dataclass(frozen=True, slots=True)
class GuardPages:
    """Operands of the host's code, against guard pages."""

    library: Library
    sides: tuple[Side, ...] = ("end", "start")

    def words(self, side: Side) -> str:
        """Say where the guard page is."""
        return f"with the {side} of every buffer at a guard page"

    def reserve(self, size: int, side: Side, align: int) -> Guarded:
        """Return a buffer of bytes that make NaN."""
        guarded = Guarded(size, side, align)
        guarded.raw[:] = UNSET
        return guarded

    def keep(self, array: Array, side: Side) -> Guarded:
        """Return read-only memory."""
        guarded = Guarded(array.nbytes, side, array.itemsize)
        guarded.raw[:] = array.reshape(-1).view(np.uint8)
        return self.freeze(guarded)

    def freeze(self, operand: Guarded) -> Guarded:
        """Make the buffer read-only."""
        operand.freeze()
        return operand

    def without_margins(self, operand: Guarded) -> None:
        """Return None: a read outside crashes."""

    def argument(self, operand: Guarded | None) -> Any:
        """Return the address."""
        return self.library.ffi.cast("void *", 0) if operand is None else self.place(operand.raw)

    def place(self, array: Array) -> Any:
        """Return the address."""
        return self.library.ffi.cast("void *", array.ctypes.data)


@dataclass(frozen=True, slots=True)
class Surrounded:
    """A copy of an image in a device's memory, whose middle is an operand of ``size`` bytes.

    ``margin`` is the byte in front of it and behind. Code must leave margins as they are, and all
    of what is ``frozen``.
    """

    library: DeviceLibrary
    image: NDArray[np.uint8]
    size: int
    margin: int
    frozen: bool
    whole: Argument
    argument: Argument

    @classmethod
    def of(
        cls, library: DeviceLibrary, content: NDArray[np.uint8], margin: int, frozen: bool
    ) -> Surrounded:
        """Copy an operand and its margins to the device."""
        image = np.full(content.size + 2 * MARGIN, margin, np.uint8)
        image[MARGIN : MARGIN + content.size] = content
        whole = library.copy_in("u8")(image)
        place = library.part(whole, MARGIN, max(content.size, 1))  # no part of a buffer is empty
        return cls(library, image, content.size, margin, frozen, whole, place)

    def _read(self) -> NDArray[np.uint8]:
        now = np.empty_like(self.image)
        assert self.library.copy_out
        self.library.copy_out(self.whole, now)
        return now

    @property
    def raw(self) -> NDArray[np.uint8]:
        """The bytes of the operand, as they are now."""
        return self._read()[MARGIN : MARGIN + self.size]

    def fault(self, name: str) -> str | None:
        """Return what was written that must not be, of an operand of that name; or None."""
        now = self._read()
        before, content, after = np.split(now, (MARGIN, MARGIN + self.size))
        if where := _first_trespass(before, after, self.margin):
            return f"wrote outside {name}: {where}"
        changed = np.flatnonzero(content != self.image[MARGIN : MARGIN + self.size])
        if self.frozen and changed.size:
            return f"wrote byte {changed[0]} of {name}, which is only read"
        return None


@dataclass(frozen=True, slots=True)
class Margins:
    """Operands of a device's code between margins, both sides at once."""

    library: DeviceLibrary
    sides: tuple[Side, ...] = ("end",)

    def words(self, side: Side) -> str:
        """Say that there are margins."""
        return "with margins around every buffer"

    def reserve(self, size: int, side: Side, align: int) -> Surrounded:
        """Return a buffer of bytes that make NaN, between others."""
        unset = np.full(size, UNSET, np.uint8)
        return Surrounded.of(self.library, unset, _CANARY, frozen=False)

    def keep(self, array: Array, side: Side) -> Surrounded:
        """Return a copy between NaN."""
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return Surrounded.of(self.library, raw, UNSET, frozen=True)

    def freeze(self, operand: Surrounded) -> Surrounded:
        """Return a copy between NaN."""
        return self.keep(operand.raw, "end")

    def without_margins(self, operand: Surrounded) -> Surrounded:
        """Return a copy between zeros."""
        return Surrounded.of(self.library, operand.raw, 0, frozen=True)

    def argument(self, operand: Surrounded | None) -> Argument:
        """Return the place of the operand."""
        return self.library.null if operand is None else operand.argument

    def place(self, array: Array) -> Argument:
        """Return the place of a copy."""
        return self.library.copy_in("u8")(array)
