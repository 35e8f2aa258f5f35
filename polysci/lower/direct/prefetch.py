"""C text of prefetching packed weights: where the panel starts that a nest reads next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polysci.lower.direct.tiles import Tile
from polysci.numerics.arrays import round_up
from polysci.printers import ctree as c
from polysci.space.directives.ahead import NestedLoop, PanelReuse


def call_number(reuse: PanelReuse, origin: Mapping[str, str]) -> str:
    """How many calls came before this one, of those that read the same panel of B."""
    positions, strides, inside = dict[str, str](), dict[str, int](), 1
    for level, loop in reversed([*enumerate(reuse.inner)]):
        at = _position(loop, origin)
        steps = str(int(at) // loop.step) if at.isdigit() else f"{at} / {loop.step}"
        positions[str(level)] = at if loop.step == 1 else steps
        strides[str(level)] = inside
        inside *= loop.trips
    return c.linear(strides, positions)


def next_panel(reuse: PanelReuse, tile: Tile, origin: Mapping[str, str], size: int) -> str:
    """Elements of packed B from this call's panel to the one that is read next.

    The innermost loop that goes on moves by its step; the loops inside it start again. In a network
    the next layer's weights lie behind the last panel, where ``size`` bytes of B end.
    """
    strides, outer = tile.panel_strides(), reuse.outer
    text = _behind(tile, origin, size)
    for level, loop in enumerate(outer):
        step = strides.get(loop.dim, 0) * loop.step
        distance = " ".join([str(step), *_returns(outer[level + 1 :], strides, origin)])
        goes_on = _goes_on(loop, origin, tile.plan.extent(loop.dim))
        if goes_on:
            text = f"{goes_on} ? {distance} : {text}" if goes_on != "1" else distance
    return text


def _behind(tile: Tile, origin: Mapping[str, str], size: int) -> str:
    """Elements from this call's panel to the end of what was packed ahead."""
    plan = tile.plan
    if plan.contraction.packs_b:
        return "0"
    strides = {dim: -stride for dim, stride in tile.panel_strides().items()}
    return c.linear(strides, origin, round_up(size) // plan.compute.bytes)


def _returns(
    loops: Sequence[NestedLoop], strides: Mapping[str, int], origin: Mapping[str, str]
) -> list[str]:
    """What loops over B subtract that start again."""
    outermost = {loop.dim: loop for loop in reversed(loops)}
    return [
        f"- {strides[dim]} * {_factor(_position(loop, origin))}"
        for dim, loop in outermost.items()
        if dim in strides and _position(loop, origin) != "0"
    ]


def _goes_on(loop: NestedLoop, origin: Mapping[str, str], whole: int) -> str:
    """The condition that a loop has another iteration: "1" where it always does, "" where never."""
    bounds = {_factor(origin[loop.dim]): whole} | {_position(loop, origin): loop.extent}
    conditions = list[str]()
    for at, extent in bounds.items():
        start = at if loop.step == loop.inmost else f"{at} / {loop.step} * {loop.step}"
        if not at.isdigit():
            conditions.append(f"{start} + {loop.step} < {extent}")
        elif int(at) // loop.step * loop.step + loop.step >= extent:
            return ""
    return " && ".join(conditions) or "1"


def _position(loop: NestedLoop, origin: Mapping[str, str]) -> str:
    """Where a call's tile starts inside the block that a loop divides."""
    at = origin[loop.dim]
    if at.isdigit():
        return str(int(at) % loop.extent)
    return f"{_factor(at)} % {loop.extent}" if loop.nested else _factor(at)


def _factor(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"
