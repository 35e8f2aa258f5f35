"""Barriers between stages: threads wait where one uses what another thread made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from polysci.loop_ir.expressions import axis, loads
from polysci.lower.layer_calls import Spot
from polysci.program.control import ELSE, END, IF, BranchStage
from polysci.program.passes.arena import Arena
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.stages import LoopStage, Program, RepeatStage, Stage

Space = tuple[str, int, int]  # a buffer of the caller's, or the arena; first byte and end
Loops = tuple[tuple[str, int], ...]  # iterators and extents, the outermost first


def stage_at(program: Program, spot: Spot) -> Stage:
    """A stage of the program, or one that another one repeats."""
    stage = program.stages[spot[0]]
    return stage.members[spot[1]] if isinstance(stage, RepeatStage) else stage


@dataclass(frozen=True, slots=True)
class Barriers:
    """The memory that stages touch: threads wait where one uses what another one writes.

    ``loops`` are those of repeated loop stages without reductions. ``scratch`` is memory in the
    arena that single stages use: bytes, and who uses them. The first thread computes the stages at
    ``alone``.
    """

    placed: PlacedProgram
    arena: Arena
    scratch: Mapping[str, tuple[int, Spot]]
    loops: Mapping[Spot, Loops]
    alone: frozenset[int] = frozenset()
    paths: list[list[Spot]] = field(default_factory=list)  # what is pending on the other side
    spaces: dict[Spot, tuple[list[Space], list[Space]]] = field(default_factory=dict)  # by stage

    def before(self, spots: Sequence[Spot], pending: list[Spot]) -> list[bool]:
        """Return whether all wait before each of some stages, run in order behind ``pending``."""
        waits = list[bool]()
        for spot in spots:
            stage = stage_at(self.placed.program, spot)
            if isinstance(stage, BranchStage) and stage.part in (ELSE, END):
                waits.append(self.turn(stage, pending))
                continue
            waits.append(any(self.conflicts(spot, other) for other in pending))
            if waits[-1]:
                pending.clear()
            pending.append(spot)
            if isinstance(stage, BranchStage) and stage.part == IF:
                self.paths.append([*pending])
        return waits

    def turn(self, stage: BranchStage, pending: list[Spot]) -> bool:
        """Turn to the other side of a branch, or end it; nobody waits there.

        Each side follows what came before both; both come before what follows.
        """
        side = self.paths.pop()
        if stage.part == ELSE:
            self.paths.append([*pending])
            pending[:] = side
        else:
            pending[:] = dict.fromkeys((*side, *pending))
        return False

    def conflicts(self, spot: Spot, other: Spot) -> bool:
        """Return whether a thread may use memory in one stage that another writes in the other."""
        if {spot[0], other[0]} <= self.alone or self.keeps_to_itself(spot, other):
            return False
        mine, others = self.memory(spot), self.memory(other)
        if _touch(mine[0], others[1]) or _touch(others[0], mine[1]):
            return True
        results = [
            self.placed.places[name]
            for at in (spot, other)
            for name in stage_at(self.placed.program, at).outputs[:1]
        ]
        if len(results) < 2:
            return False
        first, second = results
        parts = first.buffer == second.buffer and first != second  # of a joined tensor: apart
        return _touch(mine[0][parts:], others[0]) or _touch(mine[0], others[0][parts:])

    def memory(self, spot: Spot) -> tuple[list[Space], list[Space]]:
        """Return the memory that a stage writes, its result first, and that it reads."""
        if spot not in self.spaces:
            stage = stage_at(self.placed.program, spot)
            written = [self.space(name) for name in stage.outputs]
            scratch = [
                ("", at, at + size) for name, (size, user) in self.scratch.items()
                if user == spot for at in [self.arena.offsets[name]]
            ]  # fmt: skip
            reads = [self.space(name) for name in stage.inputs]
            self.spaces[spot] = [*written, *scratch], reads
        return self.spaces[spot]

    def space(self, name: str) -> Space:
        """The memory of a tensor's buffer."""
        buffer = self.placed.places[name].buffer
        first = self.arena.offsets.get(buffer)
        if first is None:
            return buffer, 0, 1
        return "", first, first + self.placed.program.values[buffer].bytes

    def keeps_to_itself(self, spot: Spot, other: Spot) -> bool:
        """Return whether every thread finds in one stage what it made itself in the other one.

        So it is where both share the same loops in the same way, and an element of one needs no
        more of the other than the element of its own place.
        """
        loops = self.loops.get(spot)
        if not loops or loops != self.loops.get(other):
            return False
        first, second = (stage_at(self.placed.program, at) for at in (spot, other))
        return self.reads_own(first, second) and self.reads_own(second, first)

    def reads_own(self, writer: Stage, reader: Stage) -> bool:
        """Return whether a loop touches only the element of its own place of another's results."""
        assert isinstance(writer, LoopStage) and isinstance(reader, LoopStage)
        written, place = self.space(writer.output), self.placed.places[writer.output]
        shape = self.placed.program.values[writer.output].shape
        if shape != self.placed.program.values[reader.output].shape:
            return False
        for name in (*reader.outputs, *reader.inputs):
            if _touch([written], [self.space(name)]) and self.placed.places[name] != place:
                return False
        own = {name for name in reader.inputs if _touch([written], [self.space(name)])}
        return all(
            subscript == axis(at) or shape[at] == 1
            for load in loads(reader.expr)
            if load.tensor in own
            for at, subscript in enumerate(load.index)
        )


def _touch(some: Sequence[Space], others: Sequence[Space]) -> bool:
    """Return whether any two of them have bytes in common."""
    return any(
        space[0] == other[0] and space[1] < other[2] and other[1] < space[2]
        for space in some
        for other in others
    )
