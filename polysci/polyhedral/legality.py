"""Whether a schedule is legal, asked of isl: it covers the domain once and keeps dependences."""

from __future__ import annotations

import islpy as isl

from polysci.errors import IllegalScheduleError
from polysci.polyhedral.contraction import Contraction
from polysci.polyhedral.schedule import Schedule
from polysci.polyhedral.scop import Scop


def check(scop: Scop, contraction: Contraction, plan: Schedule) -> None:
    """Raise IllegalScheduleError unless ``plan`` may replace the original order of ``scop``.

    * The tiles cover the iteration domain, every point once.
    * Every dependence is respected, except that a reduction's own updates may be reordered: they
      change the rounding of a sum, not its terms.
    * No parallel loop carries a dependence, the reduction's included.
    """
    plan.check({d.name: d.extent for d in contraction.dims})
    times = schedule_map(contraction, plan)
    statement = scop.statements[0].name
    domain = scop.domain()
    order = isl.UnionMap(f"{{ {statement}{times} }}")
    covered = order.intersect_domain(domain)
    if not covered.domain().is_equal(domain) or not covered.is_injective():
        raise IllegalScheduleError(f"{plan}: does not visit every iteration exactly once")
    kept = dependences_to_keep(scop)
    late = kept.apply_domain(order).apply_range(order)
    if not late.is_empty() and not _forward(late, _length(contraction, plan)):
        raise IllegalScheduleError(f"{plan}: reverses a dependence")
    for position, loop in enumerate(plan.loops):
        if loop.parallel and _carries(scop, order, position, _length(contraction, plan)):
            raise IllegalScheduleError(f"{plan}: parallel loop {loop} carries a dependence")


def schedule_map(contraction: Contraction, plan: Schedule) -> str:
    """isl text ``[n, k, ..] -> [time]``: the origins of all tile loops, then the points inside."""
    names = [d.name for d in contraction.dims]
    times = [
        f"{loop.dim} - {loop.dim} mod {loop.step}" if loop.step > 1 else loop.dim
        for loop in plan.loops
    ]
    return f"[{', '.join(names)}] -> [{', '.join([*times, *names])}]"


def _length(contraction: Contraction, plan: Schedule) -> int:
    return len(plan.loops) + len(contraction.dims)


def dependences_to_keep(scop: Scop) -> isl.UnionMap:
    """Dependences that must keep their direction: all but the reduction's own."""
    found = scop.dependences("flow").union(scop.dependences("anti"))
    found = found.union(scop.dependences("output"))
    return found.subtract(scop.reduction_dependences())


def _forward(moved: isl.UnionMap, length: int) -> bool:
    """Whether every pair of times goes forward."""
    times = isl.Map.lex_lt(isl.Space.set_alloc(isl.DEFAULT_CONTEXT, 0, length))
    return bool(moved.is_subset(isl.UnionMap.from_map(times)))


def _carries(scop: Scop, order: isl.UnionMap, position: int, length: int) -> bool:
    """Whether two iterations of a loop, equal in all loops around it, depend on each other."""
    every = scop.dependences("flow").union(scop.dependences("anti"))
    every = every.union(scop.dependences("output"))
    moved = every.apply_domain(order).apply_range(order)
    before = ", ".join(f"a{i}" for i in range(length))
    after = ", ".join(f"b{i}" for i in range(length))
    same = " and ".join(f"a{i} = b{i}" for i in range(position)) or "true"
    apart = isl.UnionMap(f"{{ [{before}] -> [{after}] : {same} and a{position} != b{position} }}")
    return not moved.intersect(apart).is_empty()
