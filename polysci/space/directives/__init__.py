"""The directives of schedules, one row each, in the order in which they stand in a text."""

from __future__ import annotations

from polysci.space.directives.ahead import Ahead
from polysci.space.directives.copy import Copy
from polysci.space.directives.directive import Directive, EntryPoint, Place, TilePart
from polysci.space.directives.pack import Pack
from polysci.space.directives.plain import Plain
from polysci.space.directives.private import Private
from polysci.space.directives.stream import Stream
from polysci.space.directives.swap import Swap

DIRECTIVES: tuple[type[Directive], ...] = (Swap, Private, Plain, Pack, Copy, Ahead, Stream)

__all__ = [
    "DIRECTIVES",
    "Ahead",
    "Copy",
    "Directive",
    "EntryPoint",
    "Pack",
    "Place",
    "Plain",
    "Private",
    "Stream",
    "Swap",
    "TilePart",
    "standing",
]


def standing(place: Place) -> tuple[type[Directive], ...]:
    """Return the rows that stand in one place, in order."""
    return tuple(row for row in DIRECTIVES if row.place is place)
