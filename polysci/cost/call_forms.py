"""Forms of schedules whose B changes from call to call: copied in parts, or read where it lies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import ceil, prod

import numpy as np

from polysci.cost.compute import sums_beside
from polysci.cost.estimate import Context
from polysci.errors import SpecError, UnsupportedError
from polysci.polyhedral.contraction import columns_of
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives import Ahead, Pack, Plain
from polysci.space.directives.pack import vector_copy
from polysci.space.directives.plain import columns_touch
from polysci.space.enumerate import row_dims
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule, Step
from polysci.target.microkernels import family, find


def plain_forms(context: Context, schedules: Iterator[Schedule]) -> Iterator[Schedule]:
    """The schedules with B read where it lies, of those that can be.

    Then those with few passes over B, and with short reductions.
    """
    plain = [schedule.without(Ahead).having(Plain()) for schedule in schedules]
    few = (_in_few_passes(context, form) for form in plain)
    tall = dict.fromkeys([*plain, *few])
    short = (_shorten(context, form) for form in tall)
    for form in dict.fromkeys([*tall, *short]):
        try:
            resolve(context.contraction, context.strides, form)
        except UnsupportedError:
            continue
        yield form


def _in_few_passes(context: Context, schedule: Schedule) -> Schedule:
    """The schedule with as many rows a call as save a pass: panels are ranked where that is free.

    One with several loops over rows, or several dimensions of them, stays as it is.
    """
    kernel, rows = find(schedule.kernel), row_dims(context.contraction, context.strides)
    if len(rows) != 1 or [loop.dim for loop in schedule.loops].count(rows[0].name) != 1:
        return schedule
    size = rows[0].extent
    alike = family(kernel.family, kernel.isa, kernel.compute)
    tall = min(
        (other for other in alike if other.cols == kernel.cols),
        key=lambda other: (ceil(size / other.rows), other.rows),
    )
    steps = tuple(
        replace(step, step=min(tall.rows, size))
        if isinstance(step, Loop) and step.dim == rows[0].name else step
        for step in schedule.steps
    )  # fmt: skip
    return replace(schedule, steps=steps, kernel=str(tall))


def _shorten(context: Context, schedule: Schedule) -> Schedule:
    """The schedule with few rows of B at a time: found pages, or streams where none is read again.

    These are all that the loops over one call's columns and rows read. With k along the lanes,
    as much of k as L1 holds for a block of sums.
    """
    contraction = context.contraction
    column, depths = columns_of(contraction).name, contraction.by_role("k")
    loops = [step for step in schedule.loops if step.dim not in [d.name for d in depths]]
    last = {loop.dim: loop for loop in loops}  # of several the innermost
    points = [loop for loop in last.values() if loop.dim != column and not loop.parallel]
    points = [loop for loop in [last.get(column), *points] if loop and not loop.parallel]
    kept = [loop for loop in loops if loop.parallel or loop.dim != column]
    around = [loop for loop in kept if loop not in points]
    if columns_touch(contraction, context.strides):
        machine = context.machine
        again = any(loop.dim != column for loop in points)
        most = int(machine.coefficient("pages_found" if again else "streams"))
        if not again:
            around, points = _widen(context, schedule, around, points)
    else:
        lanes, (deep,) = find(schedule.kernel).lanes, contraction.by_role("k")
        blocks = ceil(deep.extent / _kept_depth(context, schedule))
        most = ceil(deep.extent / blocks / lanes) * lanes
    if not all(
        loop.dim in (column, *(d.name for d in contraction.by_role("m"))) for loop in points
    ):
        return schedule
    shorter = [Loop(d.name, most) for d in depths if d.extent > most]
    return schedule.with_nest((*around, *shorter, *points))


def _widen(
    context: Context, schedule: Schedule, around: list[Loop], points: list[Loop]
) -> tuple[list[Loop], list[Loop]]:
    """Give each thread one share of the columns: rows are streams as long as that is wide."""
    column, cols = columns_of(context.contraction), find(schedule.kernel).cols
    share = ceil(column.extent / context.threads / cols) * cols
    shared = [loop for loop in around if loop.parallel and loop.dim == column.name]
    if len(shared) != 1 or share >= column.extent:
        return around, points
    wide = [replace(loop, step=share) if loop in shared else loop for loop in around]
    inner = [loop for loop in points if loop.dim == column.name] or [Loop(column.name, cols)]
    return wide, [*inner, *(loop for loop in points if loop.dim != column.name)]


def _kept_depth(context: Context, schedule: Schedule) -> int:
    """Steps of k of which L1 holds a block of sums' rows and columns, in whole vectors."""
    contraction, lanes = context.contraction, find(schedule.kernel).lanes
    tile = schedule.tile(contraction.extents)
    rows = prod(tile[d.name] for d in contraction.dims if d.role in ("m", "batch"))
    width = np.full(1, float(tile[columns_of(contraction).name]))
    step = contraction.a.bytes * (rows + int(sums_beside(np.full(1, float(rows)), width, lanes)[0]))
    return max(1, context.target.first_level.size // step // lanes) * lanes


def part_forms(context: Context, schedules: Iterable[Schedule]) -> Iterator[Schedule]:
    """The schedules with B copied part by part, of those that can be.

    Parts are copied once each: inside the loops that move B alone, or inside those over reductions.
    """
    contraction = context.contraction
    if not contraction.packs_b:
        return
    for schedule in schedules:
        parallel = len(schedule.parallel)
        places = {parallel, *(at + parallel for at in _places(context, schedule))} - {0}
        for depth in sorted(places):
            form = schedule.without(Ahead).with_nest(_with_part(schedule, depth))
            try:
                plan = resolve(contraction, context.strides, form)
            except (SpecError, UnsupportedError):
                continue
            if vector_copy(plan, context.strides[plan.contraction.w.array]):
                yield form


def _places(context: Context, schedule: Schedule) -> Iterator[int]:
    """Yield the numbers of loops behind the parallel ones that may stand around the copies."""
    contraction = context.contraction
    leading = schedule.loops[len(schedule.parallel) :]
    of_b = [contraction.b.uses(loop.dim) for loop in leading]
    yield next((at for at, moves in enumerate(of_b) if not moves), len(of_b))
    sums = [loop.dim in contraction.reductions for loop in leading]
    yield next((at for at, splits in enumerate(sums) if not splits), len(sums))


def _with_part(schedule: Schedule, depth: int) -> tuple[Step, ...]:
    """The steps with ``pack(B)`` inside so many loops, behind a ``pack(A)`` in the same place."""
    steps, loops = list[Step](), 0
    todo = True
    for step in schedule.nest:
        if todo and loops == depth and not isinstance(step, Pack):
            steps.append(Pack(operand="B"))
            todo = False
        steps.append(step)
        loops += not isinstance(step, Pack)
    return (*steps, *[Pack(operand="B")] * todo)
