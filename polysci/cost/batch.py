"""Group single schedules into the families that rankers take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from polysci.cost.estimate import Context
from polysci.polyhedral.contraction import columns_of
from polysci.polyhedral.footprint import Count
from polysci.space import directives
from polysci.space.directives import Directive, Plain
from polysci.space.directives.plain import plain_roles
from polysci.space.enumerate import Family, RegisterTile, row_dims
from polysci.space.group_views import GroupView, group_view_of
from polysci.space.schedule import Schedule
from polysci.target.microkernels import find


@dataclass(frozen=True, slots=True)
class Batch:
    """A family in the view of its microkernels; ``indices`` are its members' input positions."""

    context: Context
    family: Family
    indices: NDArray[np.intp]


def batch(context: Context, schedules: Sequence[Schedule]) -> Iterator[Batch]:
    """The schedules as families: those with the same view, loops and pad together.

    Raises SpecError or UnsupportedError for a schedule that does not belong to the context.
    """
    kinds: dict[tuple[GroupView, bool, tuple[str, ...], int], list[tuple[int, Schedule]]] = {}
    for index, schedule in enumerate(schedules):
        view = group_view_of(context.contraction, schedule)
        schedule = view.inside(context.contraction, schedule)
        loops = tuple(loop.dim for loop in schedule.loops)
        pad = schedule.pack.pad if schedule.pack else 0
        kinds.setdefault((view, schedule.has(Plain), loops, pad), []).append((index, schedule))
    for (view, plain, dims, pad), members in kinds.items():
        seen = plain_roles(context.contraction) if plain else context.contraction
        wide = replace(context, contraction=view.of(seen))
        indices = np.array([index for index, _ in members], dtype=np.intp)
        yield Batch(wide, _family(wide, dims, pad, [schedule for _, schedule in members]), indices)


def costs(
    context: Context, schedules: Sequence[Schedule], cost: Callable[[Context, Family], Count]
) -> Count:
    """A ranker's cost of every schedule, in their order."""
    cost_by_schedule = np.zeros(len(schedules))
    for part in batch(context, schedules):
        cost_by_schedule[part.indices] = cost(part.context, part.family)
    return cost_by_schedule


def _family(
    context: Context, dims: tuple[str, ...], pad: int, members: Sequence[Schedule]
) -> Family:
    shapes: dict[RegisterTile, int] = {}
    which = [shapes.setdefault(_tile(context, schedule), len(shapes)) for schedule in members]
    steps = [[loop.step for loop in schedule.loops] for schedule in members]
    return Family(
        dims,
        np.array(steps, dtype=np.int64).reshape(len(members), len(dims)),
        np.array(which, dtype=np.intp),
        tuple(shapes),
        {d.name: d.extent for d in context.contraction.dims},
        np.array(
            [schedule.pack_depth if schedule.pack else -1 for schedule in members], dtype=np.intp
        ),
        np.array([len(schedule.parallel) for schedule in members], dtype=np.intp),
        {row: on for row in directives.DIRECTIVES if (on := _having(members, row)).any()},
        pad,
        context.contraction.reductions,
        panels=np.array([schedule.panels_depth for schedule in members], dtype=np.intp),
    )


def _having(members: Sequence[Schedule], row: type[Directive]) -> NDArray[np.bool_]:
    return np.array([schedule.has(row) for schedule in members], dtype=np.bool_)


def _tile(context: Context, schedule: Schedule) -> RegisterTile:
    inside = schedule.tile({d.name: d.extent for d in context.contraction.dims})
    rows = [d.name for d in row_dims(context.contraction, context.strides)]
    names = (columns_of(context.contraction).name, *reversed(rows))
    sizes = tuple((name, inside[name]) for name in names)
    return RegisterTile(find(schedule.kernel), sizes, prod(inside[name] for name in rows))
