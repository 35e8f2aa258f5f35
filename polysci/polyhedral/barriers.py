"""Barriers between the uses of memory that work-items share, asked of isl.

All items of a group pass the same barriers. Two uses of an element by different items are in order
if a barrier stands between them: if their epochs, the numbers of barriers passed, differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import islpy as isl

from polysci.polyhedral.turns import in_turn


@dataclass(frozen=True, slots=True)
class SharedUse:
    """Reads or writes of a buffer, as isl text: ``items`` to epochs and elements.

    ``relation`` is ``{ [item] -> [epoch, element] : ... }``.
    """

    buffer: str
    writes: bool
    relation: str


@dataclass(frozen=True, slots=True)
class Race:
    """Two items that use a buffer in one epoch, one of which writes."""

    buffer: str
    items: tuple[int, int]

    def __str__(self) -> str:
        first, second = self.items
        return (
            f"{self.buffer}: work-items {first} and {second} use an element, one writes it, and no "
            "barrier stands between"
        )


@in_turn
def find_race(uses: Sequence[SharedUse]) -> Race | None:
    """Return two uses without a barrier between; None: there are none."""
    maps = [isl.Map(use.relation) for use in uses]
    apart = isl.Map("{ [a] -> [b] : a != b }")
    for at, (use, relation) in enumerate(zip(uses, maps, strict=True)):
        for other, second in zip(uses[at:], maps[at:], strict=True):
            if use.buffer != other.buffer or not (use.writes or other.writes):
                continue
            pairs = relation.apply_range(second.reverse()).intersect(apart)
            if not pairs.is_empty():
                point = pairs.wrap().sample_point()
                items = (_coordinate(point, place) for place in (0, 1))
                return Race(use.buffer, (next(items), next(items)))
    return None


def _coordinate(point: isl.Point, place: int) -> int:
    return int(point.get_coordinate_val(isl.dim_type.set, place).to_python())
