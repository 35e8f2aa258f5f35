"""Blocks along a Hilbert curve as nested loops: a run of its turns is nearly a square of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from polysci.polyhedral.schedule import Loop, Schedule


def square_groups(schedule: Schedule, extents: Mapping[str, int]) -> Iterator[Schedule]:
    """Loops over 1, 2, 4, .. blocks by as many, and over the blocks of each.

    A curve does no worse than the best of these at any level of the caches: it moves through each
    square before it comes to the next one.
    """
    at = schedule.steps.index(schedule.loops[0])
    blocks, rest = schedule.loops[:2], schedule.steps[at + 2 :]
    size = 1
    while size == 1 or all(block.step * size < extents[block.dim] for block in blocks):
        outer = tuple(Loop(block.dim, block.step * size, block.parallel) for block in blocks)
        inner = tuple(replace(block, parallel=False) for block in blocks) if size > 1 else ()
        steps = (*schedule.steps[:at], *outer, *inner, *rest)
        yield replace(schedule, hilbert=False, steps=steps)
        size *= 2
