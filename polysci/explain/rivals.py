"""The nearest rivals of a schedule: each differs in one trait and loses by one term."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType

import numpy as np

from polysci.cost import Context, traffic
from polysci.cost.curve_groups import best_curve
from polysci.cost.rankers import competitive_ways
from polysci.errors import SpecError, UnsupportedError
from polysci.explain.terms import LEVELS, OTHER, Terms, terms_of
from polysci.space.directives import Hilbert, Swap
from polysci.space.enumerate import Family, schedules
from polysci.space.group_views import roles_of
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule
from polysci.text.tables import bytes_text, time_text

CURVE = "blocks along a curve"
_NEAREST = 6  # members of a family examined for each trait
_KEPT = 12  # candidates a trait, before those that cannot be generated are dropped


@dataclass(frozen=True, slots=True)
class NearSchedule:
    """A schedule that differs in ``trait``, its prediction, and why it lost."""

    trait: str
    schedule: Schedule
    terms: Terms
    why: str


def rivals(context: Context, chosen: Schedule) -> tuple[NearSchedule, ...]:
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
            for trait, differs in TRAITS.items():
                if differs(schedule, chosen, extents):
                    pools[trait].setdefault(str(schedule), (float(seconds[index]), schedule))
    if not chosen.has(Hilbert):
        curves = best_curve(context, chosen, inf)
        pools[CURVE] = {str(form): (seconds, form) for form, seconds in curves}
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
Differs = Callable[[Schedule, Schedule, Extents], bool]


def _same_call(schedule: Schedule, chosen: Schedule, extents: Extents) -> bool:
    rows = _call(schedule, extents) == _call(chosen, extents)
    return rows and schedule.kernel == chosen.kernel


def _call(schedule: Schedule, extents: Extents) -> dict[str, int]:
    """Extents of one call along the tiled loops."""
    tile = schedule.tile(extents)
    looped = {loop.dim for loop in schedule.loops}
    return {dim: size for dim, size in tile.items() if dim in looped and size < extents[dim]}


def _order(schedule: Schedule) -> tuple[str, ...]:
    """Dimensions in the order of their innermost loops."""
    return tuple(dict.fromkeys(loop.dim for loop in reversed(schedule.loops)))


def _packing(schedule: Schedule) -> tuple[int, int]:
    return (schedule.pack_depth, schedule.pack.pad) if schedule.pack else (-1, 0)


def _other_tile(schedule: Schedule, chosen: Schedule, extents: Extents) -> bool:
    return schedule.kernel != chosen.kernel


def _other_order(schedule: Schedule, chosen: Schedule, extents: Extents) -> bool:
    return _same_call(schedule, chosen, extents) and _order(schedule) != _order(chosen)


def _other_blocks(schedule: Schedule, chosen: Schedule, extents: Extents) -> bool:
    same = _order(schedule) == _order(chosen) and (schedule.pack is None) == (chosen.pack is None)
    return same and schedule.kernel == chosen.kernel and schedule.loops != chosen.loops


def _other_packing(schedule: Schedule, chosen: Schedule, extents: Extents) -> bool:
    return _same_call(schedule, chosen, extents) and _packing(schedule) != _packing(chosen)


def _other_parallel(schedule: Schedule, chosen: Schedule, extents: Extents) -> bool:
    marks = [loop.dim for loop in schedule.parallel], [loop.dim for loop in chosen.parallel]
    return _same_call(schedule, chosen, extents) and marks[0] != marks[1]


TRAITS: Mapping[str, Differs] = MappingProxyType(
    {
        "register tile": _other_tile,
        "loop order": _other_order,
        "cache blocks": _other_blocks,
        "packing": _other_packing,
        "parallel loops": _other_parallel,
    }
)


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
