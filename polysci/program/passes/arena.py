"""One block of memory for all tensors between inputs and outputs, shared over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polysci.numerics.arrays import round_up
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.stages import RepeatStage


@dataclass(frozen=True, slots=True)
class Arena:
    """Offsets in bytes by buffer, the size of all, and what it would be without sharing."""

    offsets: Mapping[str, int]
    size: int
    unshared: int


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
    offsets: dict[str, int] = {}
    order = sorted(sizes, key=lambda name: (-sizes[name], alive[name].first, name))
    for name in order:
        taken = sorted(
            (offsets[other], offsets[other] + round_up(sizes[other]))
            for other in offsets
            if apart or alive[other].meets(alive[name])
        )
        at = 0
        for start, end in taken:
            if at + round_up(sizes[name]) <= start:
                break
            at = max(at, end)
        offsets[name] = at
    total = max((offsets[name] + round_up(sizes[name]) for name in offsets), default=0)
    return Arena(offsets, total, sum(map(round_up, sizes.values())))
