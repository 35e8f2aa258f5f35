"""``hilbert(C)``: turns of the two outermost loops, blocks of C, along a generalised Hilbert curve.

Where both loops are parallel, each thread has a piece of the curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polysci.loop_ir.index import Index, Mapped, as_index
from polysci.space.directives.ahead import Ahead
from polysci.space.directives.directive import Directive
from polysci.space.directives.private import Private

if TYPE_CHECKING:
    from polysci.space.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Hilbert(Directive):
    """The two outermost loops follow a curve."""

    word = "hilbert(C)"
    headers = ("hilbert",)
    ordered_loops = 2

    def fault(self, schedule: Schedule) -> str:
        if why := _loops_fault(schedule):
            return f"{self} orders blocks of C: {why}"
        other = next((row.word for row in (Ahead, Private) if schedule.has(row)), "")
        return f"{self} orders blocks of C: {other} follows the order of loops" if other else ""

    def order_turns(self, turn: Index, counts: Sequence[int]) -> Index:
        return Mapped("ps_hilbert", (turn, *map(as_index, counts)))


def _loops_fault(schedule: Schedule) -> str:
    """Return why the two outermost loops cannot follow a curve; empty where they can."""
    if len({loop.dim for loop in schedule.loops[:2]}) < 2:
        return "it needs two outermost loops over different dimensions"
    if len(schedule.parallel) not in (0, 2):
        return "its two loops are both parallel or neither is"
    if schedule.pack and schedule.pack_depth == 1:
        return "nothing is packed between its two loops"
    return ""
