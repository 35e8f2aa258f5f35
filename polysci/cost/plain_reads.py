"""What reading B where it lies costs, beside panels that a call packs first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, prod
from typing import Final

from polysci.cost.estimate import Context
from polysci.cost.second_reads import USABLE
from polysci.errors import UnsupportedError
from polysci.polyhedral.contraction import columns_of
from polysci.polyhedral.footprint import LINE
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives import Ahead, Plain
from polysci.space.directives.plain import columns_touch
from polysci.space.enumerate import row_dims
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule
from polysci.target.microkernels import family, find

_PAGE: Final = 4096  # bytes
_PAGES: Final = 64  # that a CPU finds at once
_STREAMS: Final = 8  # rows read side by side from end to end, which a CPU prefetches
_WALK: Final = 5e-9  # seconds to find another one
_NOT_AHEAD: Final = 2e-9  # seconds longer that memory takes for a line that nothing prefetches
_SHORT_RUNS: Final = 2.0  # times as long as long runs: rows of a panel that L2 delivers again
_IN_FLIGHT: Final = 8  # FMAs that two units have under way
_LANE_SUM: Final = 6  # FMAs that take as long as adding a lane of a vector to the others
_ROW_FROM_L2: Final = 1.6  # the same for a vector of a row that L1 lost before the next columns
_LOSES: Final = 3.0  # share of rows that L1 loses, over the share by which they exceed it
_FROM_L3: Final = 20e-9  # of a row of a panel, where rows share so few sets that L2 holds none


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
        most = _PAGES if any(loop.dim != column for loop in points) else _STREAMS
        if most == _STREAMS:
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


def row_bytes(context: Context) -> int:
    """Bytes from one row of B to the next: the distance of its steps of k."""
    b = context.contraction.b
    offset = b.offset(context.strides[b.array])
    return b.bytes * max((offset.coef(d.name) for d in context.contraction.by_role("k")), default=0)


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
    tile = schedule.tile({d.name: d.extent for d in contraction.dims})
    column, (deep,) = columns_of(contraction), contraction.by_role("k")
    outer = [d for d in contraction.dims if d.role in ("m", "batch")]
    rows, columns = _block_of_sums(context, schedule)
    calls = prod(ceil(d.extent / tile[d.name]) for d in (*outer, column, deep))
    steps = ceil(tile[deep.name] / kernel.lanes) * ceil(tile[column.name] / columns)
    block = float(max(rows * columns, rows + columns, _IN_FLIGHT) + columns)
    excess = contraction.a.bytes * rows * tile[deep.name] / context.target.memory("L1").size - 1
    block += _ROW_FROM_L2 * rows * min(1.0, max(0.0, _LOSES * excess))
    ends = _LANE_SUM * kernel.lanes * rows * ceil(tile[column.name] / kernel.lanes)
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
    contraction = context.contraction
    tile = schedule.tile({d.name: d.extent for d in contraction.dims})
    column, apart = columns_of(contraction), row_bytes(context)
    steps = prod(d.extent for d in contraction.dims if d.role in ("k", "batch"))
    touches = steps * ceil(column.extent / tile[column.name])
    passes = prod(ceil(d.extent / tile[d.name]) for d in row_dims(contraction, context.strides))
    deep = prod(tile[d.name] for d in contraction.by_role("k"))
    rows, calls = _rows_beside(context, schedule)
    walk = _WALK * min(1.0, apart / _PAGE) if rows > _PAGES else 0.0
    again, row = _FROM_L3, contraction.b.bytes * tile[column.name]
    if deep * apart <= context.target.memory("L2").size:
        again = _SHORT_RUNS * row * 1e-9 / context.machine.l2
    seconds = touches * (walk + (passes - 1) * again)
    size = sum(
        its.bytes * prod(its.shape) for its in (contraction.a, contraction.b, contraction.out)
    )
    if not context.cold and size <= USABLE * context.target.last_level.size:
        return seconds
    if rows > 2 * _STREAMS:  # the first line of a row waits half as long again
        return seconds + touches * (ceil(row / LINE) + 0.5) * _NOT_AHEAD
    return seconds + touches / (deep * calls) * context.machine.jump_ns * 1e-9


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
