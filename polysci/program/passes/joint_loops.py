"""Loops over the same elements that read the same tensors, as one loop: each is read once.

The later one moves up, or the earlier one down, where no stage in between keeps it from that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polysci.loop_ir.expressions import axis, loads, reductions, walk
from polysci.loop_ir.functions import PLACES
from polysci.program.control import BranchStage
from polysci.program.passes.buffers import PlacedProgram, alike
from polysci.program.passes.fusion import LARGEST
from polysci.program.passes.row import Fusion
from polysci.program.stages import JointLoops, LoopStage, Stage, members_of


def join_loops(placed: PlacedProgram) -> tuple[PlacedProgram, tuple[Fusion, ...]]:
    """The program with loops that can share one, and what each of them saves."""
    stages, fusions = list[Stage](), list[Fusion]()
    for stage in placed.program.stages:
        stages.append(stage)
        if not isinstance(stage, LoopStage):
            continue
        at, shared, rises = _partner(placed, stages)
        if not shared:
            continue
        first = stages[at]
        bytes_read = sum(placed.program.values[name].bytes for name in shared)
        fusions.append(Fusion(stage.name, first.name, shared[0], bytes_read))
        joint = JointLoops((*_loops(first), stage))
        stages[at if rises else -1] = joint
        del stages[-1 if rises else at]
    return replace(placed, program=replace(placed.program, stages=tuple(stages))), tuple(fusions)


def _loops(stage: Stage) -> tuple[LoopStage, ...]:
    """The loops that a stage consists of; none where it is something else."""
    if not isinstance(stage, LoopStage | JointLoops):
        return ()
    return tuple(part for part in members_of(stage) if isinstance(part, LoopStage))


def _partner(placed: PlacedProgram, stages: Sequence[Stage]) -> tuple[int, tuple[str, ...], bool]:
    """The last stage that the one behind all others can join, and the tensors that both use.

    Whether the latter moves up to it; else it moves down.
    """
    stage = stages[-1]
    assert isinstance(stage, LoopStage)
    for at in reversed(range(len(stages) - 1)):
        first, between = stages[at], stages[at + 1 : -1]
        if isinstance(first, BranchStage):
            break
        members = _loops(first)
        if not members or not (shared := _shared_tensors(placed, members, stage)):
            continue
        if not any(_conflict(placed, other, stage) for other in between):
            return at, shared, True
        if not any(_conflict(placed, first, other) for other in between):
            return at, shared, False
    return 0, (), False


def _conflict(placed: PlacedProgram, first: Stage, second: Stage) -> bool:
    """Return whether two stages must keep their order: one writes what the other one uses."""
    written, read = placed.buffers_of(first.outputs), placed.buffers_of(first.inputs)
    own = placed.buffers_of(second.outputs)
    return bool(written & placed.buffers_of(second.inputs) or (written | read) & own)


def _shared_tensors(
    placed: PlacedProgram, members: Sequence[LoopStage], stage: LoopStage
) -> tuple[str, ...]:
    """The tensors that a loop uses as well as those that it could join; empty where it cannot."""
    first, values, places = members[0], placed.program.values, placed.places
    shape = values[first.output].shape
    if values[stage.output].shape != shape or not alike(
        places[stage.output], places[first.output], shape
    ):
        return ()
    sums = [reductions(part.expr) for part in (first, stage)]
    kinds = [[(part.over, part.guards) for part in parts] for parts in sums]
    functions = [part.function for it in (*members, stage) for part in reductions(it.expr)]
    if kinds[0] != kinds[1] or sum(name in PLACES for name in functions) > 1:
        return ()
    if sum(1 for part in (*members, stage) for _ in walk(part.expr)) > LARGEST:
        return ()
    if not all(_in_own_places(placed, member, stage) for member in members):
        return ()
    own = placed.buffers_of([name for part in members for name in (*part.outputs, *part.inputs)])
    return tuple(
        name for name in stage.inputs
        if places[name].buffer in own and values[name].size >= values[stage.output].size > 0
    )  # fmt: skip


def _in_own_places(placed: PlacedProgram, first: LoopStage, second: LoopStage) -> bool:
    """Return whether each reads only the element of its own place of the other's results."""
    if placed.places[first.output].buffer == placed.places[second.output].buffer:
        return False
    return all(_reads_own(placed, *pair) for pair in ((first, second), (second, first)))


def _reads_own(placed: PlacedProgram, writer: LoopStage, reader: LoopStage) -> bool:
    place, shape = placed.places[writer.output], placed.program.values[writer.output].shape
    inside = {load for part in reductions(reader.expr) for load in loads(part.body)}
    for load in loads(reader.expr):
        other = placed.places[load.tensor]
        if other.buffer != place.buffer:
            continue
        own = replace(other, dtype=place.dtype)
        here = (index == axis(at) or shape[at] == 1 for at, index in enumerate(load.index))
        if own != place or load in inside or len(load.index) != len(shape) or not all(here):
            return False
    return True
