"""Schedules whose calls copy B as a whole or in parts, or read it where it lies: forms, seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from types import MappingProxyType

import numpy as np

from polysci.cost.bandwidths import USABLE
from polysci.cost.batch import batch
from polysci.cost.estimate import Context
from polysci.cost.features import (
    CostCounts,
    bytes_to_pack,
    kept_copy,
    panel_transfers,
    panel_waits,
    row_bytes,
    seconds_to_copy,
)
from polysci.cost.traffic import traffic
from polysci.cost.traffic_counts import PAGE
from polysci.errors import SpecError, UnsupportedError
from polysci.polyhedral.contraction import columns_of
from polysci.polyhedral.footprint import LINE
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives import Ahead, Pack, Plain
from polysci.space.directives.plain import columns_touch
from polysci.space.enumerate import Family, row_dims
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule, Step
from polysci.target.microkernels import family, find


def predict_all(context: Context, schedules: Sequence[Schedule]) -> list[float]:
    """Predicted seconds of each schedule, none along a curve; those with the same loops at once."""
    seconds = np.zeros(len(schedules))
    for part in batch(context, schedules):
        members = [schedules[at] for at in part.indices]
        seconds[part.indices] = member_seconds(context, members, part.context, part.family)
    return [float(its) for its in seconds]


@dataclass(frozen=True, slots=True)
class Member:
    """One schedule, its family of one in the view of its kernel, and one thread's compute time."""

    context: Context
    schedule: Schedule
    viewed: Context
    family: Family
    compute: float


def _seconds_of_parts(member: Member) -> float:
    """Return what copying B in parts costs beside copying it as a whole."""
    nest = CostCounts(member.viewed, member.family)
    waits = float(np.ravel(panel_waits(nest))[0])
    return part_seconds(member.context, member.schedule, nest, waits)


# Seconds that directives add to the estimate, by the names that ``Directive.features`` returns.
DIRECTIVE_FEATURES: Mapping[str, Callable[[Member], float]] = MappingProxyType(
    {
        "plain_reads": lambda it: plain_seconds(it.context, it.schedule, it.compute),
        "copied_parts": _seconds_of_parts,
    }
)


def member_seconds(
    context: Context, schedules: Sequence[Schedule], viewed: Context, family: Family
) -> list[float]:
    """Return the predicted seconds of a family's members; ``viewed`` is in its kernels' view."""
    estimate, count = traffic(viewed, family), len(family)
    seconds = [float(its) for its in np.broadcast_to(estimate.seconds, count)]
    compute = np.broadcast_to(estimate.compute, count)
    for at, schedule in enumerate(schedules):
        for name in features_of(schedule):
            member = Member(context, schedule, viewed, family.member(at), float(compute[at]))
            seconds[at] += DIRECTIVE_FEATURES[name](member)
    return seconds


def features_of(schedule: Schedule) -> list[str]:
    """Return the rows of ``DIRECTIVE_FEATURES`` that a schedule's directives add."""
    return [name for directive in schedule.directives for name in directive.features()]


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


def plain_seconds(context: Context, schedule: Schedule, compute: float) -> float:
    """What reading B where it lies costs beside reading its panels; ``compute``: one thread's."""
    threads = context.threads if schedule.parallel else 1
    if columns_touch(context.contraction, context.strides):
        return _page_seconds(context, schedule) / threads
    return (_dot_seconds(context, schedule) - compute) / threads


def _dot_seconds(context: Context, schedule: Schedule) -> float:
    """Multiplications with k along the lanes, and the sums over lanes behind every call's.

    A step loads a vector of each row and column of a block of sums; loads are as fast as FMAs, and
    columns come from L2, which takes an FMA's time more, as do rows that L1 does not keep.
    """
    contraction, kernel = context.contraction, find(schedule.kernel)
    coefficient = context.machine.coefficient
    tile = schedule.tile({d.name: d.extent for d in contraction.dims})
    column, (deep,) = columns_of(contraction), contraction.by_role("k")
    outer = [d for d in contraction.dims if d.role in ("m", "batch")]
    rows, columns = _block_of_sums(context, schedule)
    calls = prod(ceil(d.extent / tile[d.name]) for d in (*outer, column, deep))
    steps = ceil(tile[deep.name] / kernel.lanes) * ceil(tile[column.name] / columns)
    block = float(max(rows * columns, rows + columns, coefficient("in_flight")) + columns)
    excess = contraction.a.bytes * rows * tile[deep.name] / context.target.memory("L1").size - 1
    block += coefficient("row_l2") * rows * min(1.0, max(0.0, coefficient("row_loss") * excess))
    ends = coefficient("lane_sum") * kernel.lanes * rows * ceil(tile[column.name] / kernel.lanes)
    return calls * (steps * block + ends) * 2e-9 * kernel.lanes / context.peak


def _block_of_sums(context: Context, schedule: Schedule) -> tuple[int, int]:
    """Rows and columns whose sums are in registers at a time, where each is a dot product."""
    contraction, lanes = context.contraction, find(schedule.kernel).lanes
    tile = schedule.tile({d.name: d.extent for d in contraction.dims})
    rows = prod(tile[d.name] for d in contraction.dims if d.role in ("m", "batch"))
    most = max(1, 3 * lanes // (2 * rows))  # sums of a row that registers hold
    width = min(tile[columns_of(contraction).name], lanes)
    return rows, min(width, next(n for n in (8, 4, most) if n <= most))


def _kept_depth(context: Context, schedule: Schedule) -> int:
    """Steps of k of which L1 holds a block of sums' rows and columns, in whole vectors."""
    lanes = find(schedule.kernel).lanes
    step = context.contraction.a.bytes * sum(_block_of_sums(context, schedule))
    return max(1, context.target.memory("L1").size // step // lanes) * lanes


def _page_seconds(context: Context, schedule: Schedule) -> float:
    """What rows of B that lie apart cost: each call comes to as many as it has steps."""
    contraction, coefficient = context.contraction, context.machine.coefficient
    tile = schedule.tile({d.name: d.extent for d in contraction.dims})
    column, apart = columns_of(contraction), row_bytes(context)
    steps = prod(d.extent for d in contraction.dims if d.role in ("k", "batch"))
    touches = steps * ceil(column.extent / tile[column.name])
    passes = prod(ceil(d.extent / tile[d.name]) for d in row_dims(contraction, context.strides))
    deep = prod(tile[d.name] for d in contraction.by_role("k"))
    rows, calls = _rows_beside(context, schedule)
    far = rows > coefficient("pages_found")
    walk = coefficient("walk_ns") * 1e-9 * min(1.0, apart / PAGE) if far else 0.0
    again, row = coefficient("row_l3_ns") * 1e-9, contraction.b.bytes * tile[column.name]
    if deep * apart <= context.target.memory("L2").size:
        again = coefficient("short_row") * row * 1e-9 / context.machine.l2
    seconds = touches * (walk + (passes - 1) * again)
    size = sum(
        its.bytes * prod(its.shape) for its in (contraction.a, contraction.b, contraction.out)
    )
    if not context.cold and size <= USABLE * context.target.last_level.size:
        return seconds
    if rows > 2 * coefficient("streams"):
        lines = ceil(row / LINE) + coefficient("first_line")
        return seconds + touches * lines * coefficient("not_ahead_ns") * 1e-9
    return seconds + touches / (deep * calls) * coefficient("jump_ns") * 1e-9


def _rows_beside(context: Context, schedule: Schedule) -> tuple[int, int]:
    """Return how many rows of B calls read before they go on in the first, and for how many calls.

    Calls go on where the innermost loop that moves in B is one over columns.
    """
    contraction, column = context.contraction, columns_of(context.contraction).name
    extents = {d.name: d.extent for d in contraction.dims}
    rows = {d.name for d in contraction.dims if d.role in ("k", "batch")}
    size = schedule.tile(extents)
    beside = prod(size[name] for name in rows)
    for at in reversed(range(len(schedule.loops))):
        loop, outer = schedule.loops[at], schedule.loops[:at]
        reach = min((o.step for o in outer if o.dim == loop.dim), default=extents[loop.dim])
        trips = ceil(reach / size[loop.dim])
        size = size | {loop.dim: reach}
        if loop.dim in rows:
            beside *= trips
        elif loop.dim == column and trips > 1:
            return beside, trips
    return beside, 1


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
                resolve(contraction, context.strides, form)
            except (SpecError, UnsupportedError):
                continue
            yield form


def _places(context: Context, schedule: Schedule) -> Iterator[int]:
    """How many loops behind the parallel ones may stand around the copies."""
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


def part_seconds(context: Context, schedule: Schedule, nest: CostCounts, waits: float) -> float:
    """What copying parts costs beside copying the whole, which the estimate charges.

    Nothing is computed while a part comes from beyond L2. Prefetchers do not
    follow a part of rows of B that L2 does not hold. Calls do not wait for panels that were just
    written, as they do for ``waits`` seconds otherwise. The ``nest`` is of the schedule alone.
    """
    whole, in_rows = bytes_to_pack(nest)
    price = context.machine.coefficient("copy_ns" if in_rows else "gather_ns") * 1e-9
    again, around = 1, {d.name: d.extent for d in context.contraction.dims}
    for loop in schedule.loops[: schedule.panels_depth]:
        if not context.contraction.b.uses(loop.dim):
            again *= ceil(around[loop.dim] / loop.step)
        around[loop.dim] = loop.step
    far = nest.total_bytes() > USABLE * nest.l2_bytes
    part, column = nest.panels(schedule.panels_depth), nest.column
    rows = part * column.extent / around[column.name]
    streams = not in_rows or rows <= max(part, kept_copy(nest))
    read = whole * float(seconds_to_copy(nest, part, streams=streams)) * far
    saved = whole / LINE * price + float(np.ravel(panel_transfers(nest))[0]) + waits
    return (again * (whole / LINE * price + read) - saved) / context.threads
