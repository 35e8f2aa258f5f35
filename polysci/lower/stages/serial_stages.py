"""Stages that one thread computes: the first one, or several threads a stage each."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Protocol

from polysci.loop_ir.index import Variable, as_index, compare
from polysci.loop_ir.nodes import Barrier, Block, For, If, LoopKind, Once, block
from polysci.lower.layer_calls import Spot
from polysci.lower.stages.accumulators import Statements
from polysci.lower.stages.barriers import Barriers
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.thread_shares import ThreadShares
from polysci.program.stages import RepeatStage, Stage


class Stages(Protocol):
    """The stages of a program on their way to loop IR, for ``threads``."""

    placed: PlacedProgram
    shares: ThreadShares
    barriers: Barriers
    threads: int

    def lower(self, at: int, stage: Stage) -> Block: ...


def serial_stage(code: Stages, at: int, pending: list[Spot]) -> Statements:
    """Return the statements of a stage, or with the first of neighbours those of all of them.

    ``pending`` are the stages that ran since all threads waited.
    """
    stages = code.shares.neighbours(at)
    if stages is None:
        wait = _wait(code, range(at, at + 1), pending)
        return [*wait, Once(_in_turn(code, at), first=True)]
    if at > stages.start:
        return []
    wait = _wait(code, stages, pending)
    part = Variable("part")
    parts = [If(compare(part, "==", at - stages.start), _in_turn(code, at)) for at in stages]
    ends = as_index(0), as_index(len(stages))
    return [*wait, For("part", *ends, block(*parts), kind=LoopKind.PARALLEL, chunk=1)]


def _in_turn(code: Stages, at: int) -> Block:
    """Return all of a stage by one thread, as in a network that has no more."""
    alone = copy(code)
    alone.threads = 1
    return alone.lower(at, code.placed.program.stages[at])


def _wait(code: Stages, stages: Sequence[int], pending: list[Spot]) -> Statements:
    """Return what stands before stages that run without waiting in between."""
    spots = list[Spot]()
    for at in stages:
        stage = code.placed.program.stages[at]
        count = len(stage.members) if isinstance(stage, RepeatStage) else 1
        spots += [(at, inside) for inside in range(count)]
    waits = any(code.barriers.conflicts(spot, other) for spot in spots for other in pending)
    if waits:
        pending.clear()
    pending.extend(spots)
    return [Barrier()] * waits
