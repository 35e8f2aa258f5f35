"""One block of memory for all tensors between inputs and outputs, shared over time.

Stages are ordered so that tensors take least memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from polysci.numerics.arrays import round_up
from polysci.program.control import BranchStage
from polysci.program.passes.buffers import PlacedProgram, place_buffers
from polysci.program.stages import ConcatStage, Program, RepeatStage, ViewStage


@dataclass(frozen=True, slots=True)
class Arena:
    """Offsets in bytes by buffer, the size of all, and what it would be without sharing.

    The first ``state`` bytes are those of state, in its order: alike for all programs of a library.
    """

    offsets: Mapping[str, int]
    size: int
    unshared: int
    state: int = 0


@dataclass(frozen=True, slots=True)
class Life:
    """The stages from the first that writes a buffer to the last that reads it."""

    first: int
    last: int

    def meets(self, other: Life) -> bool:
        return self.first <= other.last and other.first <= self.last

    def widen(self, stages: Sequence[range]) -> Life:
        """Return a life as long as all stages that run at the same time as it."""
        for beside in stages:
            if self.meets(Life(beside.start, beside.stop - 1)):
                return Life(min(self.first, beside.start), max(self.last, beside.stop - 1)).widen(
                    [other for other in stages if other is not beside]
                )
        return self


def lives(placed: PlacedProgram, kept: frozenset[str]) -> dict[str, Life]:
    """Return the lives of buffers, without those in ``kept``."""
    alive: dict[str, Life] = {}
    for at, stage in enumerate(placed.program.stages):
        names = [*stage.outputs, *stage.inputs]
        names += stage.internal if isinstance(stage, RepeatStage) else ()
        for name in names:
            buffer = placed.places[name].buffer
            if buffer not in kept:
                alive[buffer] = Life(alive[buffer].first if buffer in alive else at, at)
    return alive


@dataclass(slots=True)
class MemoryUse:
    """Lives of buffers by name, and the bytes of those that live at each stage."""

    sizes: Mapping[str, int]
    alive: dict[str, Life]
    used: list[int]

    @staticmethod
    def of(placed: PlacedProgram) -> MemoryUse:
        program = placed.program
        kept = frozenset({*program.inputs, *program.outputs, *program.constants})
        alive, used = lives(placed, kept), [0] * len(program.stages)
        sizes = {name: program.values[name].bytes for name in alive}
        for name, life in alive.items():
            for at in range(life.first, life.last + 1):
                used[at] += sizes[name]
        return MemoryUse(sizes, alive, used)

    def prolong(self, buffers: Collection[str], stages: range, worth: int) -> bool:
        """Let buffers live at some stages, too, and return True; or False where the most grows.

        Less than ``worth`` bytes may always. Each lives at one of the stages before.
        """
        more = dict[int, int]()
        for name in {*buffers} & self.alive.keys():
            life = self.alive[name]
            for at in stages:
                if not life.first <= at <= life.last:
                    more[at] = more.get(at, 0) + self.sizes[name]
        most = max(self.used, default=0)
        if any(size >= worth and self.used[at] + size > most for at, size in more.items()):
            return False
        for at, size in more.items():
            self.used[at] += size
        for name in {*buffers} & self.alive.keys():
            life = self.alive[name]
            first, last = min(life.first, stages.start), max(life.last, stages.stop - 1)
            self.alive[name] = Life(first, last)
        return True


def arrange(
    placed: PlacedProgram,
    extra: Mapping[str, tuple[int, int]] | None = None,
    *,
    apart: bool = False,
    beside: Sequence[range] = (),
) -> Arena:
    """Place every buffer at the lowest offset that is free while it lives, the largest first.

    ``extra`` are further buffers: size in bytes, and the stage that uses it. ``apart``: nothing is
    shared, so that all tensors are still there after a run. ``beside`` are stages that run at the
    same time.
    """
    program = placed.program
    kept = frozenset({*program.inputs, *program.outputs, *program.constants})
    alive = lives(placed, kept)
    sizes = {name: max(1, program.values[name].bytes) for name in alive}
    for name, (size, at) in (extra or {}).items():
        sizes[name], alive[name] = size, Life(at, at)
    alive = {name: life.widen(beside) for name, life in alive.items()}
    held, state = state_offsets(program)
    offsets = dict(held)
    order = sorted(sizes, key=lambda name: (-sizes[name], alive[name].first, name))
    for name in order:
        taken = sorted(
            (offsets[other], offsets[other] + round_up(sizes[other]))
            for other in offsets
            if other not in held and (apart or alive[other].meets(alive[name]))
        )
        at = state
        for start, end in taken:
            if at + round_up(sizes[name]) <= start:
                break
            at = max(at, end)
        offsets[name] = at
    total = max((offsets[name] + round_up(sizes[name]) for name in sizes), default=state)
    return Arena(offsets, total, state + sum(map(round_up, sizes.values())), state)


def state_offsets(program: Program) -> tuple[dict[str, int], int]:
    """Return where state lies in a context, by buffer, and the bytes of all of it."""
    offsets, size = dict[str, int](), 0
    for name in program.kept.values():
        offsets[name], size = size, size + round_up(max(1, program.values[name].bytes))
    return offsets, size


def order_for_memory(program: Program) -> Program:
    """The program in the best of three orders: its own, and two that a greedy search finds.

    One takes next what adds least to the memory in use, the other what continues the last stage,
    where it can. Every order is judged by the arena that it gets.
    Programs with branches, and those that replace inputs, keep their own.
    """
    if program.in_place or any(isinstance(stage, BranchStage) for stage in program.stages):
        return program
    scheduler = _Scheduler(program)
    orders = [
        range(len(program.stages)),
        scheduler.order(scheduler.growth),
        scheduler.order(scheduler.continuation),
    ]
    programs = [
        replace(program, stages=tuple(program.stages[at] for at in order)) for order in orders
    ]
    return min(programs, key=arena_bytes)


def arena_bytes(program: Program) -> int:
    """Return the size of the arena of its tensors, without what layers need besides."""
    return arrange(place_buffers(program)).size


Rank = Callable[[int, Sequence[int]], tuple[int, ...]]  # of a stage behind others; least is next


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

    def order(self, rank: Rank) -> Sequence[int]:
        """Positions of stages, always the ready one of the least rank next."""
        done: list[int] = []
        pending = dict.fromkeys(range(len(self.waits)))
        while pending:
            finished = {*done}
            ready = [at for at in pending if self.waits[at] <= finished]
            done.append(min(ready, key=lambda at: rank(at, done)))
            del pending[done[-1]]
        return done

    def growth(self, at: int, done: Sequence[int]) -> tuple[int, ...]:
        """Return how much a stage adds to the memory in use, and its position."""
        stage, finished = self.program.stages[at], {*done}
        growth, kept = 0, {*self.program.border(), *self.program.constants}
        for name in {self.root(self.memory, name) for name in (*stage.inputs, *stage.outputs)}:
            users = self.users[name]
            if name in kept or name not in self.program.values:
                continue
            size = self.program.values[name].bytes
            growth += size * (not users & finished) - size * (users <= finished | {at})
        return growth, at

    def continuation(self, at: int, done: Sequence[int]) -> tuple[int, ...]:
        """Put the stages first that read what the last one made; then as ``growth``."""
        made = {*self.program.stages[done[-1]].outputs} if done else set[str]()
        return not made & {*self.program.stages[at].inputs}, *self.growth(at, done)
