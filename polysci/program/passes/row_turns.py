"""Find the rows that members of a row fusion read of each other, and how many of them wait.

Members take turns: before one makes some rows of its result, those that it reads of others are
made. Rows wait until the last of their readers is done with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.operands import Rows, RowWindow, join_windows, rows_read
from polysci.program.stages import LayerStage, LoopStage, Stage

TURN: Final = 2048  # bytes that loops make at a time where rows are shorter: calls take little


@dataclass(frozen=True, slots=True)
class RowRead:
    """A member that reads rows of another one's result."""

    maker: int
    reader: int
    window: RowWindow


@dataclass(frozen=True, slots=True)
class RowTurns:
    """Members by number, each before its readers: rows, and how many each makes at a time.

    All but the last have readers. What is said of rows counts from the row that the last one makes
    next as 0.
    """

    heights: tuple[int, ...]
    steps: tuple[int, ...]
    reads: tuple[RowRead, ...]

    @property
    def last(self) -> int:
        """The number of the last member."""
        return len(self.heights) - 1

    def readers(self, maker: int) -> list[RowRead]:
        """Return the reads of a member's rows."""
        return [its for its in self.reads if its.maker == maker]

    def inputs(self, reader: int) -> list[RowRead]:
        """Return what a member reads of others."""
        return [its for its in self.reads if its.reader == reader]

    @property
    def in_step(self) -> bool:
        """Return whether all readers of a member's rows move on equally fast."""
        speeds = {self.last: {1}}
        for maker in reversed(range(self.last)):
            speeds[maker] = {
                its.window.step * speed
                for its in self.readers(maker) for speed in speeds[its.reader]
            }  # fmt: skip
        return all(len(its) == 1 for its in speeds.values())

    def held(self) -> list[int]:
        """Return for how many rows of each member there must be room, those of the last left out.

        What one reader needs may be far ahead of what another one still needs.
        """
        first, end, final = self.first_done(), self.last_done(), self.final()
        rows = list[int]()
        for maker in range(self.last):
            readers, most = self.readers(maker), 0
            for ahead in readers:
                for behind in readers:
                    low, high = behind.window, ahead.window
                    if ahead is behind:
                        span = (self.steps[ahead.reader] - 1) * low.step + low.span
                    else:
                        upto = high.upto(end[ahead.reader])
                        span = max(upto - low.first(first[behind.reader]),
                                   final[maker] - low.first(final[behind.reader]))  # fmt: skip
                    most = max(most, span)
            rows.append(min(most + self.steps[maker] - 1, self.heights[maker]))
        return rows

    def left(self) -> list[int]:
        """Return how many of the rows that are held a turn of every reader leaves waiting."""
        rows = list[int]()
        for maker, held in enumerate(self.held()):
            moved = min(its.window.step * self.steps[its.reader] for its in self.readers(maker))
            rows.append(max(0, held - (self.steps[maker] - 1) - moved))
        return rows

    def first_done(self) -> list[int]:
        """Return the end of the rows of each member that are made, at least."""

        def least(read: RowRead, done: int) -> int:
            return min(read.window.first(done), read.window.upto(done))

        return self.backwards(0, min, least, lambda maker, row: row - self.steps[maker] + 1)

    def last_done(self) -> list[int]:
        """Return the end of the rows of each member that are made, at most."""
        return self.backwards(
            self.steps[-1], max, lambda read, done: read.window.upto(done),
            lambda maker, row: row + self.steps[maker] - 1,
        )  # fmt: skip

    def final(self) -> list[int]:
        """Return the end of the rows of each member that are ever read, counted from its first."""
        return self.backwards(
            self.heights[-1], max, lambda read, done: read.window.upto(done),
            lambda maker, row: min(row, self.heights[maker]),
        )  # fmt: skip

    def overlap(self) -> list[int]:
        """Return how many rows of each member two threads compute, where they meet."""
        same = lambda _, row: row  # noqa: E731
        first = self.backwards(0, min, lambda read, done: read.window.first(done), same)
        end = self.backwards(0, max, lambda read, done: read.window.upto(done), same)
        return [max(0, its - own) for own, its in zip(first, end, strict=True)]

    def backwards(
        self, last: int, choose: Callable[[Sequence[int]], int],
        through: Callable[[RowRead, int], int], finish: Callable[[int, int], int],
    ) -> list[int]:  # fmt: skip
        """Return a row of each member: ``last`` of the last one, of others by what reads them."""
        rows = {self.last: last}
        for maker in reversed(range(self.last)):
            asked = [through(its, rows[its.reader]) for its in self.readers(maker)]
            rows[maker] = finish(maker, choose(asked))
        return [rows[maker] for maker in range(self.last + 1)]


def window_of(
    placed: PlacedProgram, stage: LayerStage | LoopStage, buffer: str
) -> RowWindow | None:
    """Return the rows of a buffer that a stage reads for one row of its result, by all names.

    None where they are no window, or rows of a view are other rows.
    """
    result = placed.rows_of(stage.output)
    windows = [
        rows_read(stage, name, rows, result) if rows and result else None
        for name in read_names(placed, stage, buffer)
        for rows in [same_rows(placed, name)]
    ]
    return reduce(join_windows, windows) if windows else None


def buffers_read(placed: PlacedProgram, stage: Stage) -> list[str]:
    """Return the buffers that a stage reads, each once, in order; constants lie in none."""
    places = placed.places
    return [*dict.fromkeys(places[name].buffer for name in stage.inputs if name in places)]


def read_names(placed: PlacedProgram, stage: Stage, buffer: str) -> list[str]:
    """Return the names by which a stage reads a buffer: a tensor's, and those of its views."""
    places = placed.places
    return [name for name in stage.inputs if name in places and places[name].buffer == buffer]


def same_rows(placed: PlacedProgram, name: str) -> Rows | None:
    """Return the rows of a tensor if they are those of its buffer, whatever else is other there."""
    place, rows, shape = (
        placed.places[name],
        placed.rows_of(name),
        placed.program.values[name].shape,
    )
    whole = placed.rows_of(place.buffer)
    if rows is None or whole is None or place.step or min(place.strides) < 0:
        return None
    row = placed.places[place.buffer].strides[whole.axes[-1]]
    width = sum(
        (extent - 1) * stride
        for at, (extent, stride) in enumerate(zip(shape, place.strides, strict=True))
        if at not in rows.axes
    )
    same = rows.height == whole.height and place.strides[rows.axes[-1]] == row
    return rows if same and place.first + width < row else None


def reads_among(
    tensors: Sequence[str],
    members: Sequence[LayerStage | LoopStage],
    read: Callable[[LayerStage | LoopStage], Sequence[str]],
    window: Callable[[LayerStage | LoopStage, str], RowWindow | None],
) -> tuple[RowRead, ...]:
    """Return what members read of ``tensors``, the last of which are their results.

    ``read`` returns the buffers that a member reads, ``window`` which rows of one. What a member
    replaces in place it reads before it writes there: nothing makes that for it.
    """
    numbers = {name: at for at, name in enumerate(tensors)}
    reads = list[RowRead]()
    for at, member in enumerate(members, len(tensors) - len(members)):
        for buffer in read(member):
            rows = window(member, buffer) if numbers.get(buffer, at) != at else None
            if rows:
                reads.append(RowRead(numbers[buffer], at, rows))
    return tuple(reads)


def rows_of_loops(placed: PlacedProgram, stage: LoopStage) -> int:
    """Return the rows that a loop makes at a time: few where it reads long ones for each."""
    made = placed.rows_of(stage.output)
    assert made is not None
    read = [
        name for name in stage.inputs if name in placed.places
        for rows in [placed.rows_of(name)] if rows and rows.height == made.height
    ]  # fmt: skip
    size = max(placed.program.values[name].bytes for name in (stage.output, *read))
    return max(1, min(made.height, TURN * made.height // size))
