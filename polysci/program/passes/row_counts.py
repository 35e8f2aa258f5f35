"""Count tensors as rows of one or several axes, so that stages read rows of each other.

Layers say which rows they can make one behind the other: pixels' rows of an image, tokens of all
sequences, rows of all products of a stack. Loops take over what they read or what reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.operands import Rows, row_dim, rows_read
from polysci.program.stages import LayerStage, LoopStage


def count_rows(placed: PlacedProgram) -> PlacedProgram:
    """Return a program that knows as how many rows each buffer counts in row fusions."""
    return replace(placed, row_counts=_RowCounter(placed).run())


@dataclass(slots=True)
class _RowCounter:
    placed: PlacedProgram
    counts: dict[str, int] = field(default_factory=dict)  # by buffer

    def run(self) -> dict[str, int]:
        """Return the rows of buffers that a layer makes, or that loops join with such ones."""
        members = [
            it for it in self.placed.program.stages if isinstance(it, LayerStage | LoopStage)
        ]
        for layer in members:
            if isinstance(layer, LayerStage):
                self.count_layer(layer)
        known = -1
        while known < len(self.counts):
            known = len(self.counts)
            for member in members:
                if isinstance(member, LoopStage):
                    self.count_result(member)
            for member in reversed(members):
                self.count_inputs(member)
        return self.counts

    def ways(self, name: str) -> Iterator[Rows]:
        """Yield a tensor as rows of one axis and more, if its buffer was not counted."""
        place = self.placed.places.get(name)
        if place and place.buffer not in self.counts:
            yield from Rows.every(self.placed.program.values[name].shape, place.strides)

    def count(self, name: str, rows: Rows) -> None:
        """Take the rows of a tensor for its buffer."""
        self.counts[self.placed.places[name].buffer] = rows.height

    def rows(self, name: str) -> Rows | None:
        """Return the rows of a tensor whose buffer was counted."""
        place = self.placed.places.get(name)
        if place is None or place.buffer not in self.counts:
            return None
        shape, count = self.placed.program.values[name].shape, self.counts[place.buffer]
        return Rows.of(shape, place.strides, count)

    def count_layer(self, layer: LayerStage) -> None:
        """Take the most rows that a layer makes out of rows of what it reads."""
        for rows in [*self.ways(layer.output)]:
            known = self.rows(layer.x.tensor)
            sources = [known] if known else self.ways(layer.x.tensor)
            reads = (rows_read(layer, layer.x.tensor, its, rows) for its in sources)
            if row_dim(layer, rows) and (layer.stack or any(reads)):
                self.count(layer.output, rows)

    def count_result(self, loop: LoopStage) -> None:
        """Take the rows of a loop that read windows of the largest tensor that was counted."""
        values = self.placed.program.values
        known = [name for name in loop.inputs if self.rows(name)]
        for name in sorted(known, key=lambda it: -values[it].bytes):
            source = self.rows(name)
            for rows in self.ways(loop.output):
                if source and rows_read(loop, name, source, rows):
                    self.count(loop.output, rows)
                    return

    def count_inputs(self, member: LayerStage | LoopStage) -> None:
        """Take the rows of what a stage reads whose windows move on with those of its result."""
        result = self.rows(member.output)
        for name in member.inputs if result else ():
            for rows in self.ways(name):
                if result and rows_read(member, name, rows, result):
                    self.count(name, rows)
                    break
