"""The rows that a group of work-items makes of each member of a row fusion, and where they lie.

A group makes a block of rows of the last member, and of each other one the rows that those behind
it read for them. Rows that two blocks share are made twice. They lie in the memory of the group
from the member that makes them to the last one that reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from polysci.errors import UnsupportedError
from polysci.numerics.arrays import round_up
from polysci.numerics.dtypes import array_type
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.operands import Rows, RowWindow, images_of, rows_read
from polysci.program.stages import LayerStage, LoopStage

ALIGNED: Final = 16  # bytes, of which items read and write several elements at once


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows of a tensor that a group makes: ``count`` from ``step * block + first`` on, of all.

    ``extent`` rows of ``size`` elements are the whole tensor; of others nothing is made. There are
    ``blocks`` groups. Elements are of type ``dtype``. ``place`` is that of the first row in the
    memory that a group has for elements of this type; None where rows lie in the tensor itself.
    """

    step: int
    first: int
    count: int
    extent: int
    size: int
    blocks: int
    dtype: str
    place: int | None = None

    @property
    def inside(self) -> bool:
        """Return whether all of them are rows of the tensor, in every group."""
        last = (self.blocks - 1) * self.step + self.first + self.count
        return self.first >= 0 and last <= self.extent

    @property
    def elements(self) -> int:
        """Elements of all of them."""
        return self.count * self.size

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return array_type(self.dtype).itemsize

    @property
    def memory(self) -> str:
        """The name of the memory of a group for elements of this type."""
        return memory_of(self.dtype)

    def shift(self, elements: int) -> HeldRows:
        """Return rows that begin so many elements further on in the memory of the group."""
        return self if self.place is None else replace(self, place=self.place + elements)


def memory_of(dtype: str) -> str:
    """Return the name of the memory of a group for rows whose elements are of a type."""
    return f"held_{dtype}"


def hold_rows(
    placed: PlacedProgram, members: Sequence[LayerStage | LoopStage], height: int
) -> tuple[HeldRows, ...]:
    """Return the rows of every member in blocks of ``height`` rows of the last one.

    Raises UnsupportedError where members read rows of one tensor that do not move on together.
    """
    every = dict[int, HeldRows]()
    rows = _rows(placed, members[-1].output)
    height, blocks = min(height, rows.height), -(-rows.height // height)
    last = len(members) - 1
    kind = placed.places[members[last].output].dtype
    every[last] = HeldRows(height, 0, height, rows.height, _size(rows), blocks, kind)
    for inside in reversed(range(last)):
        name = members[inside].output
        readers = [at for at in range(inside + 1, len(members)) if name in members[at].inputs]
        rows = _rows(placed, name)
        parts = [_read(placed, members[at], name, every[at]) for at in readers]
        if len({step for step, _, _ in parts}) > 1:
            raise UnsupportedError(f"{name}: its rows are read at several paces")
        first, end = min(part[1] for part in parts), max(part[2] for part in parts)
        every[inside] = HeldRows(
            parts[0][0], first, end - first, rows.height, _size(rows), blocks,
            placed.places[name].dtype,
        )  # fmt: skip
    return _with_places(members, [every[inside] for inside in range(len(members))])


def held_elements(rows: Sequence[HeldRows]) -> dict[str, int]:
    """Return the elements of each type that a group's memory holds."""
    extents = dict[str, int]()
    for own in rows:
        if own.place is not None:
            end = own.place + own.elements
            extents[own.dtype] = max(end, extents.get(own.dtype, 0))
    return extents


def held_bytes(rows: Sequence[HeldRows]) -> int:
    """Return the bytes of a group's memory that hold rows."""
    extents = held_elements(rows).items()
    return sum(round_up(count * array_type(dtype).itemsize, ALIGNED) for dtype, count in extents)


def _read(
    placed: PlacedProgram, reader: LayerStage | LoopStage, name: str, made: HeldRows
) -> tuple[int, int, int]:
    """Return what a member reads of a tensor: rows a block, the first one and the end.

    For whole images a layer reads whole images.
    """
    window = _window(placed, reader, name)
    images = (
        images_of(reader, _rows(placed, reader.output)) if isinstance(reader, LayerStage) else None
    )
    if images and made.first == 0 and made.count == made.step and made.step % images.height == 0:
        return made.step * window.step, 0, made.step * window.step
    first = made.first * window.step + window.low
    return made.step * window.step, first, first + (made.count - 1) * window.step + window.span


def _window(placed: PlacedProgram, reader: LayerStage | LoopStage, name: str) -> RowWindow:
    window = rows_read(reader, name, _rows(placed, name), _rows(placed, reader.output))
    assert window is not None
    return window


def _rows(placed: PlacedProgram, name: str) -> Rows:
    rows = placed.rows_of(name)
    assert rows is not None
    return rows


def _size(rows: Rows) -> int:
    return prod(rows.shape) // rows.height


def _with_places(
    members: Sequence[LayerStage | LoopStage], rows: Sequence[HeldRows]
) -> tuple[HeldRows, ...]:
    """Return rows at the first places that are free from when they are made until they are read.

    Those of one type share a memory.
    """
    every = list[HeldRows]()
    ends = [
        max(
            at for at, other in enumerate(members) if member.output in (*other.inputs, other.output)
        )
        for member in members
    ]
    for inside, own in enumerate(rows[:-1]):
        taken = sorted(
            (other.place, other.place + other.elements)
            for other, end in zip(every, ends, strict=False)
            if other.place is not None and other.dtype == own.dtype and end >= inside
        )
        place, aligned = 0, ALIGNED // own.item
        for start, end in taken:
            if place + own.elements > start:
                place = max(place, round_up(end, aligned))
        every.append(replace(own, place=place))
    return (*every, rows[-1])
