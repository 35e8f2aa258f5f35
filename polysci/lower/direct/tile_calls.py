"""The call of a tile function from the loops around it."""

from __future__ import annotations

from collections.abc import Mapping

from polysci.loop_ir.index import FALSE, Index, as_index, compare, every, linear
from polysci.loop_ir.nodes import Invoke, Named, Value
from polysci.lower.direct.loops import TileCall, tap_range
from polysci.lower.direct.panels import packed_bytes
from polysci.lower.direct.prefetch import call_number, next_panel
from polysci.lower.direct.private_sums import starts_of
from polysci.lower.direct.swapped_tiles import phase, result_offset
from polysci.space.packed_copy import origin_coef
from polysci.space.resolve import Plan


def tile_call(symbol: str, plan: Plan, call: TileCall) -> Invoke:
    """Return the call of a tile function: offsets in elements, and what else changes by tile."""
    origin, zero = call.origin, as_index(0)
    n = {d.name: plan.channel.coef(d.name) for d in plan.contraction.dims}
    factors = [
        _offset_of_x(plan, origin),
        linear(call.tile.panel_strides(), _inside(plan, origin, plan.schedule.panels_depth)),
    ]
    operands: list[Value] = [
        *(reversed(factors) if plan.contraction.swapped else factors),
        result_offset(plan, origin),
        linear(n, origin),
    ]
    if plan.batches:
        operands.append(linear(plan.batches, origin))
    if plan.private:  # the epilogue is that of the copies' sum
        operands += [starts_of(plan, plan.private, origin), FALSE]
    elif plan.blocked:
        starts = [compare(origin[dim], "==", 0) for dim in plan.split]
        ends = [
            compare(origin[dim] + call.tile.size(dim), "==", plan.extent(dim)) for dim in plan.split
        ]
        operands += [every(starts), every(ends)]
    for tap, row in plan.ranges.items():
        at, start = origin.get(row, zero), origin.get(tap, zero)
        operands += tap_range(plan, call.tile, tap, at, start)
    operands += phase(plan, origin)
    if plan.ahead:
        number, packed = call_number(plan.ahead, origin), packed_bytes(plan)
        operands += [number, next_panel(plan.ahead, call.tile, origin, packed)]
    return Invoke(f"{symbol}_t{call.index}", (Named("g"), *operands))


def _offset_of_x(plan: Plan, origin: Mapping[str, Index]) -> Index:
    """Where in x, or in its copy, a call begins."""
    if plan.box is None:
        return linear(plan.coef["x"], origin, plan.base)
    coef = origin_coef(plan.coef["x"], plan.contraction.x, plan.box)
    return linear(coef, _inside(plan, origin, plan.schedule.pack_depth), plan.base)


def _inside(plan: Plan, origin: Mapping[str, Index], depth: int) -> dict[str, Index]:
    """Origin of a call relative to the tile of the outermost ``depth`` loops, which is packed."""
    moved = dict(origin)
    for dim, step in {loop.dim: loop.step for loop in plan.schedule.loops[:depth]}.items():
        moved[dim] = as_index(0) if step == plan.tile[dim] else origin[dim] % step
    return moved
