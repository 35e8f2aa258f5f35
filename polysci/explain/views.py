"""What the other rankers say of a schedule: its place in a shortlist, by each one's own cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from polysci.errors import PolysciError
from polysci.polyhedral.schedule import Schedule
from polysci.rank import RANKERS, Context
from polysci.rank.shortlist import cost_of


@dataclass(frozen=True, slots=True)
class RankerView:
    """One ranker's opinion of a schedule among ``count``: ``rank`` 1 is its own first choice.

    ``ties`` others cost the same. ``cost`` and ``least`` are in the ranker's own unit.
    """

    ranker: str
    summary: str
    rank: int
    ties: int
    count: int
    cost: float
    least: float
    first: Schedule

    def to_json(self) -> dict[str, Any]:
        costs = {name: getattr(self, name) for name in ("cost", "least")}
        finite = {name: cost if isfinite(cost) else None for name, cost in costs.items()}
        return asdict(self) | finite | {"first": str(self.first)}


def ranker_views(
    context: Context, chosen: Schedule, others: Iterable[Schedule]
) -> tuple[RankerView, ...]:
    """Every ranker that can tell, on ``chosen`` among itself and ``others``.

    A ranker that needs what is not there (training, a package) is left out.
    """
    shortlist = list({str(plan): plan for plan in (chosen, *others)}.values())
    found = []
    for name, ranker in RANKERS.items():
        try:
            costs = [cost_of(context, plan, name) for plan in shortlist]
        except PolysciError:
            continue
        own, least = costs[0], min(costs)
        first = min(zip(costs, map(str, shortlist), shortlist, strict=True))[2]
        better = sum(cost < own for cost in costs)
        ties = sum(cost == own for cost in costs) - 1
        found.append(
            RankerView(name, ranker.summary, better + 1, ties, len(shortlist), own, least, first)
        )
    return tuple(found)
