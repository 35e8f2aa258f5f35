"""The legality of a schedule, asked of isl: it covers the domain once and keeps dependences."""

from __future__ import annotations

from functools import lru_cache

import islpy as isl

from polysci.errors import IllegalScheduleError
from polysci.polyhedral.contraction import Contraction
from polysci.polyhedral.scop import Scop
from polysci.polyhedral.tile_schedule import TileSchedule
from polysci.polyhedral.turns import in_turn


@in_turn
def check(scop: Scop, contraction: Contraction, tiles: TileSchedule) -> None:
    """Raise IllegalScheduleError unless ``tiles`` may replace the original order of ``scop``.

    * The tiles cover the iteration domain, every point once.
    * Every dependence is respected, except that a reduction's own updates may be reordered: they
      change the rounding of a sum, not its terms.
    * No parallel loop carries a dependence; the reduction's own only where its turns sum into
      private copies. That a guard leaves every sum one product is no excuse: the first turn of a
      reduction clears what the others add to.
    """
    domain, length = scop.domain(), len(tiles.loops) + len(tiles.extents)
    order = isl.UnionMap(f"{{ {scop.statements[0].name}{tiles.time()} }}")
    covered = order.intersect_domain(domain)
    if not covered.domain().is_equal(domain) or not covered.is_injective():
        raise IllegalScheduleError(f"{tiles.text}: does not visit every iteration exactly once")
    late = dependences_to_keep(scop).apply_domain(order).apply_range(order)
    if not late.is_empty() and not _forward(late, length):
        raise IllegalScheduleError(f"{tiles.text}: reverses a dependence")
    private = tiles.private_sums
    shared = dependences_to_keep(scop) if private else _dependences(scop)
    for position, loop in enumerate(tiles.loops):
        adds = loop.dim in contraction.reductions and tiles.trips[position] > 1
        if loop.parallel and ((adds and not private) or _carries(shared, order, position, length)):
            raise IllegalScheduleError(f"{tiles.text}: parallel loop {loop} carries a dependence")


@lru_cache(maxsize=64)
@in_turn
def dependences_to_keep(scop: Scop) -> isl.UnionMap:
    """Dependences that must keep their direction: all but the reduction's own."""
    return _dependences(scop).subtract(scop.reduction_dependences())


@lru_cache(maxsize=64)  # many schedules of a Scop are checked, and this is most of the time
def _dependences(scop: Scop) -> isl.UnionMap:
    """Flow, anti and output dependences."""
    flow, anti, output = map(scop.dependences, ("flow", "anti", "output"))
    return flow.union(anti).union(output)


def _forward(moved: isl.UnionMap, length: int) -> bool:
    """Return whether every pair of times goes forward."""
    times = isl.Map.lex_lt(isl.Space.set_alloc(isl.DEFAULT_CONTEXT, 0, length))
    return bool(moved.is_subset(isl.UnionMap.from_map(times)))


def _carries(dependences: isl.UnionMap, order: isl.UnionMap, position: int, length: int) -> bool:
    """Return whether iterations of a loop, equal in the loops around it, depend on each other."""
    moved = dependences.apply_domain(order).apply_range(order)
    before = ", ".join(f"a{i}" for i in range(length))
    after = ", ".join(f"b{i}" for i in range(length))
    same = " and ".join(f"a{i} = b{i}" for i in range(position)) or "true"
    apart = isl.UnionMap(f"{{ [{before}] -> [{after}] : {same} and a{position} != b{position} }}")
    return not moved.intersect(apart).is_empty()
