"""The order of stages in which tensors between inputs and outputs take least memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from polysci.program.control import BranchStage
from polysci.program.passes.arena import arrange
from polysci.program.passes.buffers import place_buffers
from polysci.program.stages import ConcatStage, Program, Stage, ViewStage


def order_for_memory(program: Program) -> Program:
    """The program in the best of three orders: its own, and two that a greedy search finds.

    One takes next what adds least to the memory in use, the other what continues the last stage,
    where it can. Every order is judged by the arena that it gets.
    Programs with branches, and those that replace inputs, keep their own.
    """
    if program.in_place or any(isinstance(stage, BranchStage) for stage in program.stages):
        return program
    scheduler = _Scheduler(program)
    orders = [range(len(program.stages)), scheduler.order(_least), scheduler.order(_depth_first)]
    programs = [
        replace(program, stages=tuple(program.stages[at] for at in order)) for order in orders
    ]
    return min(programs, key=arena_bytes)


def arena_bytes(program: Program) -> int:
    """Return the size of the arena of its tensors, without what layers need besides."""
    return arrange(place_buffers(program)).size


@dataclass(frozen=True, slots=True)
class NextStage:
    """A stage that may run next: how much it adds to the memory in use, whether it goes on.

    ``follows``: it reads what the last stage made.
    """

    at: int
    growth: int
    follows: bool


def _least(candidate: NextStage) -> tuple[int, ...]:
    return candidate.growth, candidate.at


def _depth_first(candidate: NextStage) -> tuple[int, ...]:
    return not candidate.follows, candidate.growth, candidate.at


@dataclass(slots=True)
class _Scheduler:
    """The stages that each waits for, and the memory of tensors, which views and concats share."""

    program: Program
    memory: dict[str, str] = field(default_factory=dict)  # tensor -> one that stands for its memory
    waits: list[set[int]] = field(default_factory=list)  # stages before each stage
    users: dict[str, set[int]] = field(default_factory=dict)  # memory -> stages that touch it

    def __post_init__(self) -> None:
        aliases: dict[str, str] = {}  # of views alone: their elements are the same
        for stage in self.program.stages:
            if isinstance(stage, ViewStage):
                aliases[stage.output] = self.root(aliases, stage.source)
            if isinstance(stage, ViewStage | ConcatStage):
                for name in stage.inputs:
                    self.memory[self.root(self.memory, name)] = self.root(self.memory, stage.output)
        touched: dict[str, list[tuple[int, bool]]] = {}
        for at, stage in enumerate(self.program.stages):
            own = set[int]()
            accesses = [(name, False) for name in stage.inputs]
            accesses += [(name, True) for name in stage.outputs if not isinstance(stage, ViewStage)]
            for name, writes in accesses:
                earlier = touched.setdefault(self.root(aliases, name), [])
                own |= {other for other, wrote in earlier if (writes or wrote) and other != at}
            if isinstance(stage, ViewStage):  # who reads it must not come before
                accesses.append((stage.output, True))
            for name, writes in accesses:
                touched.setdefault(self.root(aliases, name), []).append((at, writes))
                self.users.setdefault(self.root(self.memory, name), set()).add(at)
            self.waits.append(own)

    @staticmethod
    def root(parents: dict[str, str], name: str) -> str:
        """The last of the tensors that stand for each other."""
        while (parent := parents.get(name, name)) != name:
            name = parent
        return name

    def order(self, key: Callable[[NextStage], tuple[int, ...]]) -> Sequence[int]:
        """Positions of stages, always the ready one with the least key next."""
        done: list[int] = []
        pending, finished = dict.fromkeys(range(len(self.waits))), set[int]()
        while pending:
            ready = [at for at in pending if self.waits[at] <= finished]
            chosen = min((self.candidate(at, done, finished) for at in ready), key=key).at
            done.append(chosen)
            finished.add(chosen)
            del pending[chosen]
        return done

    def candidate(self, at: int, done: Sequence[int], finished: set[int]) -> NextStage:
        stage = self.program.stages[at]
        growth, kept = 0, {*self.program.border(), *self.program.constants}
        for name in {self.root(self.memory, name) for name in (*stage.inputs, *stage.outputs)}:
            users = self.users[name]
            if name in kept or name not in self.program.values:
                continue
            size = self.program.values[name].bytes
            growth += size * (not users & finished) - size * (users <= finished | {at})
        last: Stage | None = self.program.stages[done[-1]] if done else None
        follows = last is not None and bool({*last.outputs} & {*stage.inputs})
        return NextStage(at, growth, follows)
