"""Stages that one thread computes: the first one, or several threads a stage each."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Protocol

from polysci.lower.layer_calls import Spot
from polysci.network.codegen.barriers import Barriers
from polysci.printers import ctree as c
from polysci.printers import openmp
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.thread_shares import ThreadShares
from polysci.program.stages import RepeatStage, Stage


class StageWriter(Protocol):
    """What writes the stages of a program for its ``threads``."""

    placed: PlacedProgram
    shares: ThreadShares
    barriers: Barriers
    threads: int

    def statements(self, spot: Spot, stage: Stage) -> c.Body: ...
    def repeat(self, at: int, stage: RepeatStage, pending: list[Spot]) -> c.Body: ...


def serial_stage(code: StageWriter, at: int, pending: list[Spot]) -> c.Body:
    """The statements of a stage, or with the first of neighbours those of all of them.

    ``pending`` are the stages that ran since all threads waited.
    """
    stages = code.shares.neighbours(at)
    if stages is None:
        block = _in_turn(code, at)
        return [*_wait(code, range(at, at + 1), pending), c.Line(openmp.MASTER), c.Block(block)]
    if at > stages.start:
        return []
    wait = _wait(code, stages, pending)
    parts = [c.when(f"part == {at - stages.start}", c.Block(_in_turn(code, at))) for at in stages]
    head = ("int part = 0", f"part < {len(stages)}", "++part")
    return [*wait, c.Line(openmp.loop(chunk=1)), c.loop(*head, c.Block(parts))]


def _in_turn(code: StageWriter, at: int) -> c.Body:
    """All of a stage by one thread, as in a network that has no more."""
    alone, stage = copy(code), code.placed.program.stages[at]
    alone.threads = 1
    if isinstance(stage, RepeatStage):
        return alone.repeat(at, stage, [])
    return alone.statements((at, 0), stage)


def _wait(code: StageWriter, stages: Sequence[int], pending: list[Spot]) -> c.Body:
    """What stands before stages that run without waiting in between."""
    spots = list[Spot]()
    for at in stages:
        stage = code.placed.program.stages[at]
        count = len(stage.members) if isinstance(stage, RepeatStage) else 1
        spots += [(at, inside) for inside in range(count)]
    waits = any(code.barriers.conflicts(spot, other) for spot in spots for other in pending)
    if waits:
        pending.clear()
    pending.extend(spots)
    return [c.Line(openmp.BARRIER)] * waits
