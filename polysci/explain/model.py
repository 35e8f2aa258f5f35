"""All numbers that the model gives for one schedule of one contraction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from math import isfinite, prod
from typing import Any

from polysci.cost import RANKERS, Context
from polysci.cost.shortlist import choices, cost_of
from polysci.errors import PolysciError
from polysci.explain.dependences import Dependence, Reuse, dependences, reuses
from polysci.explain.levels import Flow, Inside, flows_of, insides, sizes_of
from polysci.explain.measured_time import MeasuredTime
from polysci.explain.rivals import NearSchedule, rivals
from polysci.explain.roofline import Roof, binding, peak_name, roofs_of
from polysci.explain.terms import Terms, terms_of
from polysci.polyhedral.contraction import Contraction, Dim, needed_products
from polysci.polyhedral.scop import Scop
from polysci.space.group_views import roles_of
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


SHORTLIST = 10  # of the ranker's choices, which all rankers order


@dataclass(frozen=True, slots=True)
class Explanation:
    """A schedule explained; times in seconds, sizes in bytes, rates in GFLOP/s.

    ``origin`` says where the schedule comes from, ``measured`` is its time if it was ever run.
    ``peak`` is that of ``compute``, the fastest way to multiply inputs of these types, for all
    threads. Of ``flops``, ``multiplied`` are not of taps in the padding, nor of zeros between
    merged groups; rooflines and shares of the peak count them. ``caches`` are one thread's shares
    of L1, L2 and L3. ``rivals`` and ``views`` are filled by ``explain`` only.
    """

    title: str
    scop: Scop
    contraction: Contraction
    machine: str
    threads: int
    flops: int
    multiplied: int
    schedule: Schedule
    origin: str
    measured: MeasuredTime | None
    peak: float
    compute: str
    caches: tuple[int, ...]
    terms: Terms
    inside: tuple[Inside, ...]
    flows: tuple[Flow, ...]
    roofs: tuple[Roof, ...]
    reuse: tuple[Reuse, ...]
    rivals: tuple[NearSchedule, ...] = ()
    views: tuple[RankerView, ...] = ()

    @property
    def dims(self) -> tuple[Dim, ...]:
        return self.contraction.dims

    @property
    def dependences(self) -> tuple[Dependence, ...]:
        """Dependences of the loop nest, independent of the schedule; computed on each access."""
        return dependences(self.scop)

    @property
    def peak_name(self) -> str:
        return peak_name(self.compute)

    @property
    def binding(self) -> Roof:
        """The roof that is lowest over this schedule."""
        return binding(self.roofs)

    def rate(self, seconds: float) -> float:
        """GFLOP/s of a time, taps in the padding counted."""
        return self.flops / seconds * 1e-9

    def needed_rate(self, seconds: float) -> float:
        """GFLOP/s of a time, of taps inside the image."""
        return self.multiplied / seconds * 1e-9


def account(
    title: str,
    scop: Scop,
    context: Context,
    schedule: Schedule,
    *,
    origin: str = "given",
    measured: MeasuredTime | None = None,
) -> Explanation:
    """The explanation of ``schedule`` alone: no rivals, no other rankers.

    Raises SpecError for a schedule that does not fit the nest.
    """
    roles = roles_of(context.contraction, schedule)
    schedule.check({d.name: d.extent for d in roles.dims})
    flops = 2 * prod(d.extent for d in roles.dims)
    multiplied = 2 * needed_products(context.contraction)
    terms, sizes = terms_of(context, schedule), sizes_of(context.target, context.threads)
    inside = insides(roles, schedule, sizes)
    return Explanation(
        title, scop, roles, str(context.target), context.threads, flops, multiplied, schedule,
        origin, measured, context.peak * context.threads, context.compute, sizes, terms, inside,
        flows_of(context, terms, inside), roofs_of(context, multiplied, terms, sizes),
        reuses(roles, context.strides),
    )  # fmt: skip


def explain(
    title: str,
    scop: Scop,
    context: Context,
    schedule: Schedule | None = None,
    *,
    origin: str = "given",
    measured: MeasuredTime | None = None,
    ranker: str = "traffic",
) -> Explanation:
    """Explain ``schedule``, or the ranker's first choice, beside its rivals.

    Raises SpecError for a schedule or ranker that does not exist and UnsupportedError where
    no schedule fits.
    """
    best = [choice.schedule for choice in choices(context, SHORTLIST, ranker=ranker)]
    if schedule is None:
        schedule, origin = best[0], "estimate"
    own = account(title, scop, context, schedule, origin=origin, measured=measured)
    near = rivals(context, schedule)
    others = [*best, *(rival.schedule for rival in near)]
    return replace(own, rivals=near, views=ranker_views(context, schedule, others))
