"""What a ranker is: a cost for every schedule of a family, and the families it chooses from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from polysci.cost.estimate import Context
from polysci.cost.ways import competitive_ways
from polysci.polyhedral.footprint import Count
from polysci.space.enumerate import Family, schedules

STREAMED = 0.5  # of the last-level cache: larger outputs may go past it


def space_of(context: Context, tiles: int, blocks: int) -> Iterator[Family]:
    """The space: of every competitive way to multiply, ``tiles`` register tiles.

    Up to ``blocks`` dimensions have cache blocks.
    """
    for way in competitive_ways(context):
        yield from schedules(
            context.contraction,
            context.strides,
            way,
            context.threads,
            tiles=tiles,
            blocks=blocks,
            cache=STREAMED * context.target.last_level.size,
            l2=context.target.memory("L2").size,
        )


@dataclass(frozen=True, slots=True)
class Ranker:
    """A way to order schedules: the least ``cost`` is the best, in whatever unit.

    ``cost`` gives one number for each schedule of a family; ``families`` the schedules to choose
    from, for a context and the limits of ``space_of``.
    """

    summary: str
    cost: Callable[[Context, Family], Count]
    families: Callable[[Context, int, int], Iterator[Family]] = space_of
