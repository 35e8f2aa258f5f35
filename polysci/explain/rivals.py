"""The nearest rivals of a schedule: like it but for one trait, and the term that costs more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from polysci.errors import SpecError, UnsupportedError
from polysci.explain.terms import LEVELS, OTHER, Terms, terms_of
from polysci.polyhedral.schedule import Schedule
from polysci.rank import Context, traffic
from polysci.space.enumerate import Family, schedules
from polysci.space.resolve import resolve
from polysci.text.tables import bytes_text, time_text

_NEAREST = 6  # members of a family that are looked at for each trait
_KEPT = 12  # rivals a trait before those that cannot be generated are dropped


@dataclass(frozen=True, slots=True)
class NearSchedule:
    """A schedule that differs in ``trait``, its prediction, and why it lost."""

    trait: str
    schedule: Schedule
    terms: Terms
    why: str


def rivals(context: Context, chosen: Schedule) -> tuple[NearSchedule, ...]:
    """The best predicted rival of every trait that has one."""
    extents = {d.name: d.extent for d in context.contraction.dims}
    pools: dict[str, dict[str, tuple[float, Schedule]]] = {trait: {} for trait in TRAITS}
    space = schedules(
        context.contraction, context.strides, context.target.isa.name, context.threads
    )
    for family in space:
        seconds = traffic(context, family).seconds
        for index in _nearest(family, seconds, chosen.tile(extents)):
            plan = family.schedule(index)
            for trait, differs in TRAITS.items():
                if differs(plan, chosen, extents):
                    pools[trait].setdefault(str(plan), (float(seconds[index]), plan))
    own = terms_of(context, chosen)
    found = []
    for trait, pool in pools.items():
        ordered = sorted(pool.values(), key=lambda one: (one[0], str(one[1])))[:_KEPT]
        rival = next((plan for _, plan in ordered if _generates(context, plan)), None)
        if rival is not None:
            terms = terms_of(context, rival)
            found.append(NearSchedule(trait, rival, terms, why(context, own, terms)))
    return tuple(found)


def _nearest(family: Family, seconds: np.ndarray, tile: Mapping[str, int]) -> list[int]:
    """The least members of a family: of all, and of those with the register tile ``tile``."""
    same = [all(tile[dim] == size for dim, size in shape.sizes) for shape in family.tiles]
    found = list(np.argsort(seconds, kind="stable")[:_NEAREST])
    members = np.flatnonzero(np.array(same)[family.which])
    found += list(members[np.argsort(seconds[members], kind="stable")[:_NEAREST]])
    return sorted(map(int, set(found)))


def _generates(context: Context, plan: Schedule) -> bool:
    try:
        resolve(context.contraction, context.strides, plan)
    except (SpecError, UnsupportedError):
        return False
    return True


Extents = Mapping[str, int]
Differs = Callable[[Schedule, Schedule, Extents], bool]


def _same_call(plan: Schedule, chosen: Schedule, extents: Extents) -> bool:
    rows = _call(plan, extents) == _call(chosen, extents)
    return rows and plan.kernel == chosen.kernel


def _call(plan: Schedule, extents: Extents) -> dict[str, int]:
    """Extents of one call, without reductions, which are another trait."""
    tile = plan.tile(extents)
    looped = {loop.dim for loop in plan.loops}
    return {dim: size for dim, size in tile.items() if dim in looped and size < extents[dim]}


def _order(plan: Schedule) -> tuple[str, ...]:
    """Dimensions in the order of their innermost loops."""
    return tuple(dict.fromkeys(loop.dim for loop in reversed(plan.loops)))


def _packing(plan: Schedule) -> tuple[int, int]:
    return (plan.pack_depth, plan.pack.pad) if plan.pack else (-1, 0)


def _other_tile(plan: Schedule, chosen: Schedule, extents: Extents) -> bool:
    return plan.kernel != chosen.kernel


def _other_order(plan: Schedule, chosen: Schedule, extents: Extents) -> bool:
    return _same_call(plan, chosen, extents) and _order(plan) != _order(chosen)


def _other_blocks(plan: Schedule, chosen: Schedule, extents: Extents) -> bool:
    same = _order(plan) == _order(chosen) and (plan.pack is None) == (chosen.pack is None)
    return same and plan.kernel == chosen.kernel and plan.loops != chosen.loops


def _other_packing(plan: Schedule, chosen: Schedule, extents: Extents) -> bool:
    return _same_call(plan, chosen, extents) and _packing(plan) != _packing(chosen)


def _other_parallel(plan: Schedule, chosen: Schedule, extents: Extents) -> bool:
    marks = [loop.dim for loop in plan.parallel], [loop.dim for loop in chosen.parallel]
    return _same_call(plan, chosen, extents) and marks[0] != marks[1]


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
    """The term that grows most, in words; or that the model sees no loss."""
    names = [*dict(rival.work), OTHER]
    before, after = (dict(one.shares) | {OTHER: one.other} for one in (chosen, rival))
    lost = rival.seconds - chosen.seconds
    if lost <= 0:
        return f"the model puts it {time_text(-lost)} ahead" if lost < 0 else "a tie in the model"
    spread = (rival.imbalance - chosen.imbalance) / rival.imbalance * rival.seconds
    grown = {name: after[name] - before.get(name, 0.0) for name in names}
    name = max(grown, key=lambda name: grown[name])
    if spread > lost / 2:
        shares = f"{rival.imbalance:.2f} of the mean, not {chosen.imbalance:.2f}"
        return f"imbalance: the busiest thread has {shares}"
    told = f"{name}: {time_text(after[name])} against {time_text(before.get(name, 0.0))}"
    return told + (_traffic(context, chosen, rival) if name == "transfer" else "")


def _traffic(context: Context, chosen: Terms, rival: Terms) -> str:
    """The level and operand whose traffic grows most, weighed by the level's rate."""
    machine = context.machine
    rates = (machine.l2, machine.l3, machine.memory)
    grown = {
        (level, operand): (getattr(new, operand) - getattr(old, operand)) / rate
        for level, old, new, rate in zip(LEVELS, chosen.levels, rival.levels, rates, strict=False)
        for operand in "abc"
    }
    level, operand = max(grown, key=lambda key: grown[key])
    old, new = chosen.levels[LEVELS.index(level)], rival.levels[LEVELS.index(level)]
    before, after = getattr(old, operand), getattr(new, operand)
    return f"; {operand.upper()} into {level}: {bytes_text(after)}, not {bytes_text(before)}"
