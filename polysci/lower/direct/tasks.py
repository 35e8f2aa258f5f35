"""Where the turns of the outermost loops stand, by their number."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polysci.lower.direct.loops import tile_schedule
from polysci.space.directives import Hilbert
from polysci.space.resolve import Plan


def origins_of_task(plan: Plan, counts: Sequence[int]) -> dict[str, str]:
    """C texts of the iterators of as many outermost loops as have ``counts``, for turn ``task``.

    Loops turn like the digits of ``task``; on a curve its place there takes the place of ``task``.
    """
    numbers = ", ".join(map(str, counts))
    place = f"ps_hilbert(task, {numbers})" if plan.schedule.has(Hilbert) else "task"
    names = tile_schedule(plan).names
    return {
        name: f"{place} / {prod(counts[position + 1 :])} % {counts[position]} * {loop.step}"
        for position, (name, loop) in enumerate(zip(names, plan.schedule.loops, strict=False))
        if position < len(counts)
    }
