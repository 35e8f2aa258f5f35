"""The tensors that may stay inside row fusions, and the chains of stages that they join."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.operands import Rows, RowWindow, row_dim
from polysci.program.passes.row import Fusion
from polysci.program.passes.row_turns import buffers_read, window_of
from polysci.program.stages import LayerStage, LoopStage, Stage

Member = LayerStage | LoopStage


@dataclass(slots=True)
class RowLinks:
    """Makers and readers of buffers.

    ``refused`` says why some tensors may not stay inside, ``refusal`` why none may.
    """

    placed: PlacedProgram
    refused: Mapping[str, str]
    refusal: str = ""
    positions: dict[int, int] = field(init=False)  # of stages, by identity
    makers: dict[str, list[Stage]] = field(default_factory=dict)  # by buffer
    readers: dict[str, list[Stage]] = field(default_factory=dict)  # by buffer
    joined: dict[str, Member] = field(default_factory=dict)  # makers of what may stay inside
    windows: dict[tuple[int, str], RowWindow | None] = field(default_factory=dict)
    reads: dict[int, tuple[str, ...]] = field(default_factory=dict)  # of stages, by identity

    def __post_init__(self) -> None:
        self.positions = {id(stage): at for at, stage in enumerate(self.placed.program.stages)}
        for stage in self.placed.program.stages:
            for buffer in self.placed.buffers_of(stage.outputs):
                self.makers.setdefault(buffer, []).append(stage)
            for buffer in self.read(stage):
                self.readers.setdefault(buffer, []).append(stage)

    def read(self, stage: Stage) -> tuple[str, ...]:
        """Return the buffers that a stage reads."""
        if id(stage) not in self.reads:
            self.reads[id(stage)] = tuple(buffers_read(self.placed, stage))
        return self.reads[id(stage)]

    def window(self, member: Member, buffer: str) -> RowWindow | None:
        """Return the rows of a buffer that a stage reads for one of its result."""
        key = id(member), buffer
        if key not in self.windows:
            self.windows[key] = window_of(self.placed, member, buffer)
        return self.windows[key]

    def find(self) -> Iterator[Fusion]:
        """Join stages by tensors that may stay inside, and yield what is said of each and why."""
        program, makers = self.placed.program, self.placed.program.makers()
        by_name = program.readers()
        for stage in program.stages:
            if not isinstance(stage, Member) or len(makers[stage.output]) > 1:
                continue
            name, size = stage.output, program.values[stage.output].bytes
            own = self.placed.places[name].buffer == name
            readers = (self.readers if own else by_name).get(name, [])
            whole = self.refuse_tensor(stage, readers)
            refusals = {
                id(reader): whole or self.refuse_read(name, reader)
                for reader in readers if isinstance(reader, Member)
            }  # fmt: skip
            other = next(filter(None, refusals.values()), "")
            if readers and not whole and not other:
                self.joined[name] = stage
            for at, reader in enumerate(its for its in readers if isinstance(its, Member)):
                why = refusals[id(reader)] or (other and f"another stage reads it, too: {other}")
                yield Fusion(stage.name, reader.name, name, (1 + (at == 0)) * size, why)

    def refuse_tensor(self, maker: Member, readers: Sequence[Stage]) -> str:
        """Return why what a stage makes must leave a row fusion, whoever reads it; or nothing."""
        name = maker.output
        if self.refusal:
            return self.refusal
        if name in self.placed.program.outputs:
            return "it is an output"
        if name in self.refused:
            return self.refused[name]
        rows, place = self.placed.rows_of(name), self.placed.places[name]
        if rows is None:
            return "it has no rows"
        whole = place.strides[rows.axes[-1]] * rows.height == prod(rows.shape)
        if place.buffer != name or place.first or place.step or not whole:
            return "it is part of another tensor"
        if isinstance(maker, LayerStage) and (maker.y.step or not makes_rows(maker, rows)):
            return "it is part of another tensor"
        if len(self.makers[name]) > 1:
            return "another stage changes it"
        others = [reader.name for reader in readers if not isinstance(reader, Member)]
        return f"{others[0]} reads all of it" if others else ""

    def refuse_read(self, name: str, reader: Member) -> str:
        """Return why a stage cannot read rows of a tensor as they are made; empty if it can."""
        rows = self.placed.rows_of(reader.output)
        if rows is None:
            return "it has no rows"
        if isinstance(reader, LayerStage):
            if reader.y.step or not makes_rows(reader, rows):
                return "it writes part of a tensor"
            if name in self.placed.buffers_of((reader.weights,)):
                return "the layer needs all of it as weights"
        if self.window(reader, name) is None:
            return "its rows read no window of rows"
        return ""

    def chains(self) -> Iterator[tuple[Member, ...]]:
        """Yield the stages that tensors join, each behind those that make what it reads.

        Behind all of the smaller tensors that it reads comes the maker of the largest one, so that
        neighbours share that.
        """
        parts = dict[int, dict[int, Member]]()  # by member
        for name, maker in self.joined.items():
            for stage in (maker, *self.members_reading(name)):
                own, other = (parts.setdefault(id(its), {id(its): its}) for its in (maker, stage))
                if own is not other:
                    own |= other
                    parts.update(dict.fromkeys(other, own))
        for part in {id(part): part for part in parts.values()}.values():
            yield self.inputs_first(sorted(part.values(), key=lambda its: self.positions[id(its)]))

    def members_reading(self, name: str) -> list[Member]:
        """Return the stages that read rows of a tensor."""
        return [stage for stage in self.readers.get(name, []) if isinstance(stage, Member)]

    def inputs_first(self, members: Sequence[Member]) -> tuple[Member, ...]:
        """Return members in an order that goes back from what leaves them, depth first."""
        values, ordered = self.placed.program.values, dict[int, Member]()
        pending = [its for its in reversed(members) if its.output not in self.joined]
        while pending:
            names = [name for name in self.read(pending[-1]) if name in self.joined]
            makers = [self.joined[name] for name in sorted(names, key=lambda it: values[it].bytes)]
            missing = [maker for maker in makers if id(maker) not in ordered]
            if missing:
                pending.append(missing[0])
            else:
                stage = pending.pop()
                ordered.setdefault(id(stage), stage)
        return tuple(ordered.values())


def makes_rows(layer: LayerStage, rows: Rows) -> bool:
    """Return whether a layer can make rows of its result in turns."""
    return not layer.stack or bool(row_dim(layer, rows))
