"""A schedule's rank in a shortlist by the cost of every ranker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from polysci.cost import RANKERS, Context
from polysci.cost.shortlist import cost_of
from polysci.errors import PolysciError
from polysci.space.schedule import Schedule


@dataclass(frozen=True, slots=True)
class RankerView:
    """A schedule's rank among ``count`` by one ranker; 1 is the ranker's first choice, ``first``.

    ``ties`` others cost the same. ``cost`` and the lowest cost ``least`` are in the ranker's unit.
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
    """The rank of ``chosen`` among itself and ``others`` by every ranker that is available.

    A ranker that lacks its training or a package is left out.
    """
    shortlist = list({str(schedule): schedule for schedule in (chosen, *others)}.values())
    views = []
    for name, ranker in RANKERS.items():
        try:
            costs = [cost_of(context, schedule, name) for schedule in shortlist]
        except PolysciError:
            continue
        own, least = costs[0], min(costs)
        first = min(zip(costs, map(str, shortlist), shortlist, strict=True))[2]
        better = sum(cost < own for cost in costs)
        ties = sum(cost == own for cost in costs) - 1
        views.append(
            RankerView(name, ranker.summary, better + 1, ties, len(shortlist), own, least, first)
        )
    return tuple(views)
