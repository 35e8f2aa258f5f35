"""Where the turns of the outermost loops stand, by their number."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polysci.loop_ir.index import Index, Mapped, Variable, as_index
from polysci.lower.direct.loops import tile_schedule
from polysci.space.directives import Hilbert
from polysci.space.resolve import Plan


def origins_of_task(plan: Plan, counts: Sequence[int]) -> dict[str, Index]:
    """Return the iterators of as many outermost loops as have ``counts``, for turn ``task``.

    Loops turn like the digits of ``task``; on a curve its place there takes the place of ``task``.
    """
    place: Index = Variable("task")
    if plan.schedule.has(Hilbert):
        place = Mapped("ps_hilbert", (place, *map(as_index, counts)))
    names = tile_schedule(plan).names
    return {
        name: place // prod(counts[position + 1 :]) % counts[position] * loop.step
        for position, (name, loop) in enumerate(zip(names, plan.schedule.loops, strict=False))
        if position < len(counts)
    }
