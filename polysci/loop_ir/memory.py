"""Memory of the interpreter: which elements have values, and who used them between barriers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci.errors import PolysciError

Array = NDArray[Any]
At = int | NDArray[np.int64]  # an element, or some
Place = slice | NDArray[np.int64]  # their bytes
# How elements of buffers and other numbers are stored, by their type: of narrow floats the bits.
STORED: Final[Mapping[str, np.dtype[Any]]] = {
    **{name: np.dtype(name) for name in ("float32", "float64")},
    **{f"{s}int{bits}": np.dtype(f"{s}int{bits}") for s in ("", "u") for bits in (8, 16, 32, 64)},
    **dict.fromkeys(("float16", "bf16"), np.dtype("uint16")), "size": np.dtype("uint64"),
    **dict.fromkeys(("bool", "bit"), np.dtype("uint8")),
    **dict.fromkeys(("byte", "opaque"), np.dtype("int8")), "int": np.dtype("int32"),
    "ps_place": np.dtype("int64"),
}  # fmt: skip
_NOBODY: Final = -1
_SEVERAL: Final = -2


class MemoryFaultError(PolysciError):
    """A race, a read of memory without values, or an element outside of its memory."""


@dataclass(slots=True)
class InterpretedMemory:
    """Bytes under a name, and which of them have values.

    Who read and wrote them last, and in which span between barriers, is kept of those that threads
    share.
    """

    name: str
    data: NDArray[np.uint8]
    written: NDArray[np.bool_]
    shared: bool = True
    spans: NDArray[np.int64] = field(init=False)
    users: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        size = len(self.data) if self.shared else 0
        self.spans = np.full((2, size), -1)
        self.users = np.full((2, size), _NOBODY)

    @classmethod
    def of(cls, name: str, array: Array) -> InterpretedMemory:
        """Take the memory of a contiguous array, all of which has values."""
        data = array.reshape(-1).view(np.uint8)
        return cls(name, data, np.ones(len(data), bool))

    @classmethod
    def empty(cls, name: str, size: int, *, shared: bool = True) -> InterpretedMemory:
        """Return memory without values."""
        return cls(name, np.zeros(size, np.uint8), np.zeros(size, bool), shared)

    def note(self, place: Place, user: int, span: int, *, writes: bool) -> None:
        """Keep who uses bytes; another thread's use since the last barrier is a race."""
        for kind in (0, 1) if writes else (1,):  # reads, writes
            users = self.users[kind][place][self.spans[kind][place] == span]
            if (users != user).any():
                raise MemoryFaultError(f"{self.name}: {_first(place)} is used by two threads")
        own = 1 if writes else 0
        same = (self.spans[own][place] != span) | (self.users[own][place] == user)
        self.users[own][place] = np.where(same, user, _SEVERAL)
        self.spans[own][place] = span


@dataclass(frozen=True, slots=True)
class Pointer:
    """A place in memory, read as elements of a type."""

    memory: InterpretedMemory
    offset: int
    dtype: np.dtype[Any]

    def move(self, count: int) -> Pointer:
        """Return the pointer to the element so many behind."""
        return Pointer(self.memory, self.offset + count * self.dtype.itemsize, self.dtype)

    def move_bytes(self, count: int) -> Pointer:
        """Return the pointer so many bytes behind, as elements of the same type."""
        return Pointer(self.memory, self.offset + count, self.dtype)

    def cast(self, dtype: np.dtype[Any]) -> Pointer:
        """Return the pointer to the same place, read as elements of another type."""
        return self if dtype is self.dtype else Pointer(self.memory, self.offset, dtype)

    def place(self, at: At) -> Place:
        """Return the bytes of elements. Raises MemoryFaultError for those outside."""
        size = self.dtype.itemsize
        start = self.offset + at * size
        if isinstance(start, int):
            lowest = highest = start
        elif start.size:
            lowest, highest = start.min(), start.max()
        else:
            lowest, highest = 0, -size
        if lowest < 0 or highest + size > len(self.memory.data):
            wrong = lowest if lowest < 0 else highest
            at = (int(wrong) - self.offset) // size
            raise MemoryFaultError(f"{self.memory.name}: element {at} lies outside")
        if isinstance(start, int):
            return slice(start, start + size)
        return np.asarray(start[..., None] + np.arange(size))


@dataclass(slots=True)
class MemoryUser:
    """A thread as memory sees it; ``alone``: no other one runs beside it."""

    number: int
    alone: bool

    @property
    def span(self) -> int:
        """The number of barriers that all threads have passed."""
        return 0

    def read(self, pointer: Pointer, at: At) -> Any:
        """Return an element, or an array of some. Raises MemoryFaultError."""
        memory, place = pointer.memory, pointer.place(at)
        if not memory.written[place].all():
            missing = _first_without_value(memory, place)
            at = (missing - pointer.offset) // pointer.dtype.itemsize
            raise MemoryFaultError(f"{memory.name}: element {at} is read before anything wrote it")
        if memory.shared and not self.alone:
            memory.note(place, self.number, self.span, writes=False)
        values = memory.data[place].view(pointer.dtype)
        return values[0] if isinstance(place, slice) else values[..., 0]

    def write(self, pointer: Pointer, at: At, value: Any) -> None:
        """Change elements. Raises MemoryFaultError."""
        memory, place = pointer.memory, pointer.place(at)
        if memory.shared and not self.alone:
            memory.note(place, self.number, self.span, writes=True)
        with np.errstate(all="ignore"):
            stored = np.asarray(value).astype(pointer.dtype)
        if isinstance(place, slice):
            memory.data[place] = stored.reshape(1).view(np.uint8)
        else:
            whole = np.ascontiguousarray(np.broadcast_to(stored, np.shape(at)))
            memory.data[place] = whole[..., None].view(np.uint8)
        memory.written[place] = True


def _first(place: Place) -> str:
    """Return the words for the first byte of a place."""
    return f"byte {place.start if isinstance(place, slice) else int(place.min())}"


def _first_without_value(memory: InterpretedMemory, place: Place) -> int:
    """Return the first byte of a place that nothing has written."""
    places = np.arange(place.start, place.stop) if isinstance(place, slice) else place
    return int(places[~memory.written[places]].min())
