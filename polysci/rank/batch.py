"""Schedules that were given one by one, as the families that rankers take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from polysci.polyhedral.contraction import columns_of
from polysci.polyhedral.footprint import Count
from polysci.polyhedral.schedule import Schedule
from polysci.rank.estimate import Context
from polysci.space.enumerate import Family, RegisterTile, row_dims
from polysci.space.group_views import GroupView, group_view_of
from polysci.target.microkernels import find


@dataclass(frozen=True, slots=True)
class Batch:
    """A family of a context as kernels take it, and which schedules its members are."""

    context: Context
    family: Family
    indices: NDArray[np.intp]


def batch(context: Context, schedules: Sequence[Schedule]) -> Iterator[Batch]:
    """The schedules as families: those with the same view, loops and pad together.

    Raises SpecError or UnsupportedError for a schedule that is none of the context's.
    """
    kinds: dict[tuple[GroupView, tuple[str, ...], int], list[tuple[int, Schedule]]] = {}
    for index, plan in enumerate(schedules):
        view = group_view_of(context.contraction, plan)
        plan = view.inside(context.contraction, plan)
        loops = tuple(loop.dim for loop in plan.loops)
        pad = plan.pack.pad if plan.pack else 0
        kinds.setdefault((view, loops, pad), []).append((index, plan))
    for (view, dims, pad), members in kinds.items():
        wide = replace(context, contraction=view.of(context.contraction))
        indices = np.array([index for index, _ in members], dtype=np.intp)
        yield Batch(wide, _family(wide, dims, pad, [plan for _, plan in members]), indices)


def costs(
    context: Context, schedules: Sequence[Schedule], cost: Callable[[Context, Family], Count]
) -> Count:
    """A ranker's cost of every schedule, in their order."""
    found = np.zeros(len(schedules))
    for one in batch(context, schedules):
        found[one.indices] = cost(one.context, one.family)
    return found


def _family(context: Context, dims: tuple[str, ...], pad: int, plans: Sequence[Schedule]) -> Family:
    shapes: dict[RegisterTile, int] = {}
    which = [shapes.setdefault(_tile(context, plan), len(shapes)) for plan in plans]
    steps = [[loop.step for loop in plan.loops] for plan in plans]
    return Family(
        dims,
        np.array(steps, dtype=np.int64).reshape(len(plans), len(dims)),
        np.array(which, dtype=np.intp),
        tuple(shapes),
        {d.name: d.extent for d in context.contraction.dims},
        np.array([plan.pack_depth if plan.pack else -1 for plan in plans], dtype=np.intp),
        np.array([len(plan.parallel) for plan in plans], dtype=np.intp),
        np.array([plan.stream for plan in plans], dtype=np.bool_),
        pad,
    )


def _tile(context: Context, plan: Schedule) -> RegisterTile:
    inside = plan.tile({d.name: d.extent for d in context.contraction.dims})
    rows = [d.name for d in row_dims(context.contraction, context.strides)]
    names = (columns_of(context.contraction).name, *reversed(rows))
    sizes = tuple((name, inside[name]) for name in names)
    return RegisterTile(find(plan.kernel), sizes, prod(inside[name] for name in rows))
