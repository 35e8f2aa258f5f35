"""All numbers that the model gives for one schedule of one contraction, and its nearest rivals.

Each rival differs in one trait and loses by one term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from math import isfinite, prod
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.cost import RANKERS, Context, traffic
from polysci.cost.rankers import competitive_ways
from polysci.cost.shortlist import choices, cost_of
from polysci.errors import PolysciError, SpecError, UnsupportedError
from polysci.explain.dependences import Dependence, Reuse, dependences, reuses
from polysci.explain.levels import Flow, Inside, flows_of, insides, sizes_of
from polysci.explain.measured_time import MeasuredTime
from polysci.explain.roofline import Roof, peak_name, roofs_of
from polysci.explain.terms import LEVELS, OTHER, Terms, terms_of
from polysci.polyhedral.contraction import Contraction, Dim, needed_products
from polysci.polyhedral.scop import Scop
from polysci.space.directives import Swap
from polysci.space.enumerate import Family, schedules
from polysci.space.group_views import roles_of
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule
from polysci.text.tables import bytes_text, time_text

_NEAREST = 6  # members of a family examined for each trait
_KEPT = 12  # candidates a trait, before those that cannot be generated are dropped


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
    of L1, L2 and L3; a working set may fill a share ``usable`` of one. ``rivals`` and ``views`` are
    filled by ``explain`` only.
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
    usable: float
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
        return min(self.roofs, key=lambda roof: roof.rate)

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
    usable = context.usable(1.0)
    inside = insides(roles, schedule, sizes, usable)
    return Explanation(
        title, scop, roles, str(context.target), context.threads, flops, multiplied, schedule,
        origin, measured, context.peak * context.threads, context.compute, sizes, usable, terms,
        inside,
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
    near = nearest_rivals(context, schedule)
    others = [*best, *(rival.schedule for rival in near)]
    return replace(own, rivals=near, views=ranker_views(context, schedule, others))


@dataclass(frozen=True, slots=True)
class NearSchedule:
    """A schedule that differs in ``trait``, its prediction, and why it lost."""

    trait: str
    schedule: Schedule
    terms: Terms
    why: str


def nearest_rivals(context: Context, chosen: Schedule) -> tuple[NearSchedule, ...]:
    """The best predicted rival of every trait that has one."""
    seen = replace(context, contraction=roles_of(context.contraction, chosen))
    extents = {d.name: d.extent for d in seen.contraction.dims}
    pools: dict[str, dict[str, tuple[float, Schedule]]] = {trait: {} for trait in TRAITS}
    space = (
        family
        for way in competitive_ways(context)
        for family in schedules(
            seen.contraction, seen.strides, way, seen.threads, l2=seen.target.second_level.size
        )
    )
    for family in space:
        seconds = traffic(seen, family).seconds
        for index in _nearest(family, seconds, chosen.tile(extents)):
            schedule = family.schedule(index)
            schedule = schedule.having(Swap()) if chosen.has(Swap) else schedule
            for trait in TRAITS:
                if _differs(trait, schedule, chosen, extents):
                    pools[trait].setdefault(str(schedule), (float(seconds[index]), schedule))
    own = terms_of(context, chosen)
    near = []
    for trait, pool in pools.items():
        ordered = sorted(pool.values(), key=lambda entry: (entry[0], str(entry[1])))[:_KEPT]
        rival = next((schedule for _, schedule in ordered if _generates(context, schedule)), None)
        if rival is not None:
            terms = terms_of(context, rival)
            near.append(NearSchedule(trait, rival, terms, why(context, own, terms)))
    return tuple(near)


def _nearest(family: Family, seconds: np.ndarray, tile: Mapping[str, int]) -> list[int]:
    """The fastest members of a family, and of those with the register tile ``tile``."""
    same = [all(tile[dim] == size for dim, size in shape.sizes) for shape in family.tiles]
    nearest = list(np.argsort(seconds, kind="stable")[:_NEAREST])
    members = np.flatnonzero(np.array(same)[family.which])
    nearest += list(members[np.argsort(seconds[members], kind="stable")[:_NEAREST]])
    return sorted(map(int, set(nearest)))


def _generates(context: Context, schedule: Schedule) -> bool:
    try:
        resolve(context.contraction, context.strides, schedule)
    except (SpecError, UnsupportedError):
        return False
    return True


Extents = Mapping[str, int]
Key = Callable[[Schedule, Extents], Any]  # what two schedules are compared by


def _kernel(schedule: Schedule, extents: Extents) -> str:
    return schedule.kernel


def _call(schedule: Schedule, extents: Extents) -> tuple[str, dict[str, int]]:
    """The microkernel, and the extents of one call along the tiled loops."""
    tile = schedule.tile(extents)
    looped = {loop.dim for loop in schedule.loops}
    sizes = {dim: size for dim, size in tile.items() if dim in looped and size < extents[dim]}
    return schedule.kernel, sizes


def _order(schedule: Schedule, extents: Extents) -> tuple[str, ...]:
    """Dimensions in the order of their innermost loops."""
    return tuple(dict.fromkeys(loop.dim for loop in reversed(schedule.loops)))


def _form(schedule: Schedule, extents: Extents) -> Any:
    """All but the blocks: the order of loops, the microkernel, whether A is packed."""
    return _order(schedule, extents), schedule.kernel, schedule.pack is None


def _packing(schedule: Schedule, extents: Extents) -> tuple[int, int]:
    return (schedule.pack_depth, schedule.pack.pad) if schedule.pack else (-1, 0)


# By trait: what rivals share with the chosen schedule, if anything, and what differs.
TRAITS: Mapping[str, tuple[Key | None, Key]] = MappingProxyType(
    {
        "register tile": (None, _kernel),
        "loop order": (_call, _order),
        "cache blocks": (_form, lambda schedule, extents: schedule.loops),
        "packing": (_call, _packing),
        "parallel loops": (_call, lambda schedule, extents: [x.dim for x in schedule.parallel]),
    }
)


def _differs(trait: str, schedule: Schedule, chosen: Schedule, extents: Extents) -> bool:
    """Tell whether a schedule is a rival of the chosen one by this trait."""
    shared, other = TRAITS[trait]
    if shared and shared(schedule, extents) != shared(chosen, extents):
        return False
    return bool(other(schedule, extents) != other(chosen, extents))


def why(context: Context, chosen: Terms, rival: Terms) -> str:
    """The term that grows most, in words; or that the rival is no slower in the model."""
    names = [*dict(rival.work), OTHER]
    before, after = (dict(terms.shares) | {OTHER: terms.other} for terms in (chosen, rival))
    lost = rival.seconds - chosen.seconds
    if lost <= 0:
        return f"the model puts it {time_text(-lost)} ahead" if lost < 0 else "a tie in the model"
    spread = (rival.imbalance - chosen.imbalance) / rival.imbalance * rival.seconds
    grown = {name: after[name] - before.get(name, 0.0) for name in names}
    name = max(grown, key=lambda name: grown[name])
    if spread > lost / 2:
        shares = f"{rival.imbalance:.2f} of the mean, not {chosen.imbalance:.2f}"
        return f"imbalance: the busiest thread has {shares}"
    text = f"{name}: {time_text(after[name])} against {time_text(before.get(name, 0.0))}"
    return text + (_traffic(context, chosen, rival) if name == "transfer" else "")


def _traffic(context: Context, chosen: Terms, rival: Terms) -> str:
    """The level and operand whose traffic grows most, weighed by the level's rate."""
    machine = context.machine
    near = (machine.l2, machine.l3)[: len(context.target.caches) - 1]
    rates = (*near, machine.memory)
    grown = {
        (level, operand): (getattr(new, operand) - getattr(old, operand)) / rate
        for level, old, new, rate in zip(LEVELS, chosen.levels, rival.levels, rates, strict=False)
        for operand in "abc"
    }
    level, operand = max(grown, key=lambda key: grown[key])
    old, new = chosen.levels[LEVELS.index(level)], rival.levels[LEVELS.index(level)]
    before, after = getattr(old, operand), getattr(new, operand)
    return f"; {operand.upper()} into {level}: {bytes_text(after)}, not {bytes_text(before)}"
