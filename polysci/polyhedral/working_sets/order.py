"""The order of a Scop's iterations: its loops as the axes of one time space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import islpy as isl

from polysci.errors import SpecError
from polysci.polyhedral.scop import Scop, Statement, bound_operations
from polysci.polyhedral.tile_schedule import TileSchedule

_SET = isl.dim_type.set


@dataclass(frozen=True, slots=True)
class PlacedStatement:
    """A statement in time: when it runs, and the element each access touches at that time."""

    statement: Statement
    domain: isl.Set
    accesses: tuple[isl.Map, ...]  # one for each of the statement's, over all times


@dataclass(frozen=True, slots=True)
class Share:
    """A thread's part of a parallel loop: ``size`` iterations; ``parts`` threads have one."""

    size: int
    parts: int


@dataclass(frozen=True, slots=True)
class Order:
    """Loops, outermost first, and every statement placed in them.

    ``shares`` say how threads divide the outermost loops, one for each that is parallel.
    """

    name: str
    loops: tuple[str, ...]
    placed: tuple[PlacedStatement, ...]
    shares: tuple[Share, ...] = ()


def text_order(scop: Scop) -> Order:
    """The order of the text; places that never vary, such as a lone loop's, are left out."""
    with bound_operations(f"order of {scop.name}"):
        times = [s.schedule.intersect_domain(s.domain) for s in scop.statements]
        ranges = [time.range() for time in times]
        if not ranges:
            raise SpecError(f"{scop.name}: no statement, so no order")
        every = ranges[0]
        for other in ranges[1:]:
            every = every.union(other)
        varying = [axis for axis in range(every.dim(_SET)) if not _constant(every, axis)]
        placed = []
        for statement, time in zip(scop.statements, times, strict=True):
            kept = _keep(time, varying)
            when = kept.reverse()
            accesses = tuple(when.apply_range(access.map) for access in statement.accesses)
            placed.append(PlacedStatement(statement, kept.range(), accesses))
    return Order(scop.name, tuple(_place(scop, axis) for axis in varying), tuple(placed))


def _constant(times: isl.Set, axis: int) -> bool:
    return bool(times.dim_min_val(axis).eq(times.dim_max_val(axis)))


def _keep(time: isl.Map, axes: Sequence[int]) -> isl.Map:
    """The map with those output dimensions alone."""
    for axis in reversed(range(time.dim(isl.dim_type.out))):
        if axis not in axes:
            time = time.project_out(isl.dim_type.out, axis, 1)
    return time


def _place(scop: Scop, axis: int) -> str:
    """Odd places are loops, named by the first statement that has them; even ones are positions."""
    depth, odd = divmod(axis, 2)
    if not odd:
        return f"position {depth}"
    return next(s.iterators[depth] for s in scop.statements if depth < len(s.iterators))


def order_of_tiles(scop: Scop, tiles: TileSchedule, threads: int = 1) -> Order:
    """Return the order of a one-statement Scop in tiles: tile loops, then the points inside.

    The points of a register tile run in the order of the text. Loops that run once are left out.
    """
    dims = [*(loop.dim for loop in tiles.loops), *tiles.extents]
    trips = [*tiles.trips, *tiles.tile.values()]
    shares = thread_share(trips[: sum(loop.parallel for loop in tiles.loops)], threads)
    varying = [i for i, trip in enumerate(trips) if trip > 1]
    with bound_operations(f"order of {scop.name} under {tiles.text}"):
        placed = _place_points(scop.statements[0], tiles, trips, varying)
    return Order(
        scop.name,
        tuple(_names([dims[i] for i in varying])),
        (placed,),
        tuple(share for share, trip in zip(shares, trips, strict=False) if trip > 1),
    )


def _place_points(
    statement: Statement, tiles: TileSchedule, trips: Sequence[int], varying: Sequence[int]
) -> PlacedStatement:
    lows = [statement.box.dim_min_val(at).to_python() for at in range(len(tiles.extents))]
    point = tiles.point(varying, lows, statement.name)
    bounds = " and ".join(f"0 <= t{i} < {trips[i]}" for i in varying) or "true"
    times = isl.Set(f"{{ [{', '.join(f't{i}' for i in varying)}] : {bounds} }}")
    domain = statement.domain.preimage_multi_aff(point).intersect(times).coalesce()
    accesses = tuple(a.map.preimage_domain_multi_aff(point) for a in statement.accesses)
    return PlacedStatement(statement, domain, accesses)


def _names(dims: Sequence[str]) -> list[str]:
    """``k0, k1`` for the levels over k, outermost first; ``k`` where there is one."""
    seen: dict[str, int] = {}
    names = []
    for dim in dims:
        level = seen.get(dim, 0)
        seen[dim] = level + 1
        names.append(f"{dim}{level}" if dims.count(dim) > 1 else dim)
    return names


def thread_share(trips: Sequence[int], threads: int) -> tuple[Share, ...]:
    """How ``threads`` divide the iterations of parallel loops, outermost first, into a grid.

    Each loop is cut into as many equal runs as it has iterations and threads are left; the threads
    left for the loops inside are those of one run. The first thread's share is a box.
    """
    shares, left = [], max(1, threads)
    for trip in trips:
        parts = min(trip, left)
        size = -(-trip // parts)
        shares.append(Share(size, -(-trip // size)))
        left //= parts
    return tuple(shares)
