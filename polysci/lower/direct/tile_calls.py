"""The call of a tile function from the loops around it."""

from __future__ import annotations

from collections.abc import Mapping

from polysci.lower.direct.loops import TileCall, tap_range
from polysci.lower.direct.panels import packed_bytes
from polysci.lower.direct.prefetch import call_number, next_panel
from polysci.lower.direct.private_sums import starts_of
from polysci.lower.direct.swapped_tiles import phase, result_offset
from polysci.printers import ctree as c
from polysci.space.packed_copy import origin_coef
from polysci.space.resolve import Plan


def tile_call(symbol: str, plan: Plan, call: TileCall) -> c.Generable:
    """The call of a tile function: offsets in elements, and what else changes from tile to tile."""
    origin = call.origin
    n = {d.name: plan.channel.coef(d.name) for d in plan.contraction.dims}
    factors = [
        _offset_of_x(plan, origin),
        c.linear(call.tile.panel_strides(), _inside(plan, origin, plan.schedule.panels_depth)),
    ]
    arguments = [
        *(reversed(factors) if plan.contraction.swapped else factors),
        result_offset(plan, origin),
        c.linear(n, origin),
    ]
    if plan.batches:
        arguments.append(c.linear(plan.batches, origin))
    if plan.private:  # the epilogue is that of the copies' sum
        arguments += [starts_of(plan, plan.private, origin), "0"]
    elif plan.blocked:
        ends = [f"{origin[d]} + {call.tile.size(d)} == {plan.extent(d)}" for d in plan.split]
        starts = [f"{origin[dim]} == 0" for dim in plan.split]
        arguments += [" && ".join(starts), " && ".join(ends)]
    for tap, row in plan.ranges.items():
        arguments += tap_range(plan, call.tile, tap, origin.get(row, "0"), origin.get(tap, "0"))
    arguments += phase(plan, origin)
    if plan.ahead:
        number, packed = call_number(plan.ahead, origin), packed_bytes(plan)
        arguments += [number, next_panel(plan.ahead, call.tile, origin, packed)]
    return c.Statement(f"{symbol}_t{call.index}(g, {', '.join(arguments)})")


def _offset_of_x(plan: Plan, origin: Mapping[str, str]) -> str:
    """Where in x, or in its copy, a call begins."""
    if plan.box is None:
        return c.linear(plan.coef["x"], origin, plan.base)
    coef = origin_coef(plan.coef["x"], plan.contraction.x, plan.box)
    return c.linear(coef, _inside(plan, origin, plan.schedule.pack_depth), plan.base)


def _inside(plan: Plan, origin: Mapping[str, str], depth: int) -> dict[str, str]:
    """Origin of a call relative to the tile of the outermost ``depth`` loops, which is packed."""
    moved = dict(origin)
    for dim, step in {loop.dim: loop.step for loop in plan.schedule.loops[:depth]}.items():
        text = origin[dim]
        if step == plan.tile[dim]:
            moved[dim] = "0"
        else:
            moved[dim] = str(int(text) % step) if text.isdigit() else f"({text}) % {step}"
    return moved
