"""Prefetching of packed weights: where the panel starts that a nest reads next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polysci.loop_ir.index import (
    FALSE,
    Condition,
    Index,
    as_index,
    choose,
    compare,
    every,
    linear,
    number_in,
)
from polysci.lower.direct.tiles import Tile
from polysci.numerics.arrays import round_up
from polysci.space.directives.ahead import NestedLoop, PanelReuse


def call_number(reuse: PanelReuse, origin: Mapping[str, Index]) -> Index:
    """Return how many calls that read the same panel of B came before this one."""
    positions, strides, inside = dict[str, Index](), dict[str, int](), 1
    for level, loop in reversed([*enumerate(reuse.inner)]):
        positions[str(level)] = _position(loop, origin) // loop.step
        strides[str(level)] = inside
        inside *= loop.trips
    return linear(strides, positions)


def next_panel(reuse: PanelReuse, tile: Tile, origin: Mapping[str, Index], size: int) -> Index:
    """Return the elements of packed B from this call's panel to the one that is read next.

    The innermost loop that goes on moves by its step; the loops inside it start again. In a network
    the next layer's weights lie behind the last panel, where ``size`` bytes of B end.
    """
    strides, outer = tile.panel_strides(), reuse.outer
    distance = _behind(tile, origin, size)
    for level, loop in enumerate(outer):
        step = strides.get(loop.dim, 0) * loop.step
        moved = as_index(step) - _returns(outer[level + 1 :], strides, origin)
        distance = choose(_goes_on(loop, origin, tile.plan.extent(loop.dim)), moved, distance)
    return distance


def _behind(tile: Tile, origin: Mapping[str, Index], size: int) -> Index:
    """Elements from this call's panel to the end of what was packed ahead."""
    plan = tile.plan
    if plan.contraction.packs_b:
        return as_index(0)
    strides = {dim: -stride for dim, stride in tile.panel_strides().items()}
    return linear(strides, origin, round_up(size) // plan.compute.bytes)


def _returns(
    loops: Sequence[NestedLoop], strides: Mapping[str, int], origin: Mapping[str, Index]
) -> Index:
    """What loops over B subtract that start again."""
    outermost = {loop.dim: loop for loop in reversed(loops) if loop.dim in strides}
    positions = {dim: _position(loop, origin) for dim, loop in outermost.items()}
    return linear(strides, positions)


def _goes_on(loop: NestedLoop, origin: Mapping[str, Index], whole: int) -> Condition:
    """Whether a loop has another iteration."""
    bounds = {origin[loop.dim]: whole} | {_position(loop, origin): loop.extent}
    conditions = list[Condition]()
    for at, extent in bounds.items():
        known = number_in(at)
        rounds = known is not None or loop.step != loop.inmost
        start = at // loop.step * loop.step if rounds else at
        if known is None:
            conditions.append(compare(start + loop.step, "<", extent))
        elif known // loop.step * loop.step + loop.step >= extent:
            return FALSE
    return every(conditions)


def _position(loop: NestedLoop, origin: Mapping[str, Index]) -> Index:
    """Where a call's tile starts inside the block that a loop divides."""
    at = origin[loop.dim]
    return at % loop.extent if loop.nested or number_in(at) is not None else at
