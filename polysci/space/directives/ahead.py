"""``ahead(B)``: calls prefetch lines of the panel of weights that follows the one they read.

With swapped factors the panels are columns of x.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Final, Self

import numpy as np
from numpy.typing import NDArray

from polysci.errors import UnsupportedError
from polysci.loop_ir.index import (
    FALSE,
    Condition,
    Flag,
    Index,
    Variable,
    as_index,
    choose,
    compare,
    every,
    linear,
    number_in,
)
from polysci.loop_ir.nodes import Comment, Let
from polysci.numerics.arrays import LINE, round_up
from polysci.numerics.dtypes import COMPUTES
from polysci.polyhedral.contraction import Contraction, Strides, columns_of
from polysci.space.directives.directive import Directive, Place, TilePart
from polysci.space.directives.swap import has_window, run_rows
from polysci.target.coefficients import prior_of
from polysci.target.microkernels import Microkernel

if TYPE_CHECKING:
    from polysci.space.enumerate import LoopOrder
    from polysci.space.plan import Plan, Tile
    from polysci.space.schedule import Schedule

# The remark at ``next`` in the function of a tile.
PREFETCH: Final = (
    "Bytes from B to what a step prefetches of the panel that comes next; 0: nothing new"
)


@dataclass(frozen=True, slots=True)
class Ahead(Directive):
    """The next panel of B comes into L2 while one is used."""

    word = "ahead(B)"
    place = Place.LAST
    sentence = "The next panel of B is prefetched meanwhile."
    features = ("prefetches", "late_prefetches")

    def refusal(
        self, contraction: Contraction, strides: Strides, schedule: Schedule, kernel: Microkernel
    ) -> str:
        return "ahead(B): steps of blocks of weights prefetch nothing" * (contraction.a.block > 1)

    def resolve(self, plan: Plan) -> Plan:
        if plan.contraction.swapped:  # calls prefetch pixels themselves
            _check_pixels(plan.contraction, plan.schedule)
            return plan
        return replace(plan, ahead=PanelReuse.of(plan.contraction, plan.schedule, plan.kernel))

    def tile_part(self, tile: Tile) -> TilePart:
        reuse = tile.plan.ahead
        return _pixels_part(tile) if reuse is None else _panels_part(tile, reuse)

    def tile_operands(self, tile: Tile, origin: Mapping[str, Index]) -> Sequence[Index]:
        reuse = tile.plan.ahead
        if reuse is None:
            return ()
        return call_number(reuse, origin), next_panel(reuse, tile, origin)

    def remark(self, contraction: Contraction, schedule: Schedule, names: Sequence[str]) -> str:
        return f"while one panel of {names[1]} is used, the next one comes into L2"

    @classmethod
    def variants(cls, order: LoopOrder) -> Sequence[NDArray[np.bool_]]:
        return (
            follow_in_cache(order.contraction, order.kernel, order.dims, order.steps, order.l2),
        )


@dataclass(frozen=True, slots=True)
class NestedLoop:
    """A loop that runs ``trips`` times over ``extent`` of a dimension, the tile of loops around it.

    ``nested``: there are loops around it over the same dimension; ``inmost`` is the least step.
    """

    dim: str
    step: int
    trips: int
    extent: int
    nested: bool
    inmost: int


@dataclass(frozen=True, slots=True)
class PanelReuse:
    """The loops around the calls that read one panel of B; ``inner`` are around those alone."""

    outer: tuple[NestedLoop, ...]
    inner: tuple[NestedLoop, ...]

    @classmethod
    def of(cls, contraction: Contraction, schedule: Schedule, kernel: Microkernel) -> Self:
        """Find the loops of a schedule. Raises UnsupportedError where no panel follows another."""
        if kernel.family != "brgemm" or not kernel.in_vectors:
            raise UnsupportedError(
                f"schedule {schedule}: ahead(B) needs a brgemm kernel on vector registers, "
                f"not {kernel}"
            )
        loops = _nested_loops(contraction, schedule)
        moves = [at for at, loop in enumerate(loops) if contraction.b.uses(loop.dim)]
        if not moves:
            raise UnsupportedError(
                f"schedule {schedule}: ahead(B) needs a loop over {contraction.b.array}: "
                "its calls read one panel"
            )
        return cls(loops[: moves[-1] + 1], loops[moves[-1] + 1 :])

    @property
    def calls(self) -> int:
        """Return how many calls read one panel."""
        return prod(loop.trips for loop in self.inner)


def _nested_loops(contraction: Contraction, schedule: Schedule) -> tuple[NestedLoop, ...]:
    """The loops that run more than once."""
    around = {dim.name: dim.extent for dim in contraction.dims}
    inmost, loops = schedule.tile(around), list[NestedLoop]()
    for loop in schedule.loops:
        dim, extent = loop.dim, around[loop.dim]
        nested = extent < contraction.extent(dim)
        trips = -(-extent // loop.step)
        loops.append(NestedLoop(dim, loop.step, trips, extent, nested, inmost[dim]))
        around[dim] = loop.step
    return tuple(loop for loop in loops if loop.trips > 1)


def share_lines(lines: int, calls: int) -> tuple[int, int, int]:
    """Lines that one of so many calls prefetches a step; the first call to do so, and the end.

    The calls in the middle: the first ones may still wait for their own panel.
    """
    most = -(-lines // calls)
    needed = -(-lines // most)
    first = (calls - needed) // 2
    return most, first, first + needed


@dataclass(frozen=True, slots=True)
class Panels:
    """Panels of B, one an array element for each schedule of a family.

    ``size`` is in bytes, ``calls`` read one panel, and a step asks for ``lines`` of the next;
    ``calls`` is 0 where no loop moves on to another panel; ``rows`` is of one call. ``reuse`` is
    how often the nest reads a part of B while that stays in L2.
    """

    size: NDArray[np.int64]
    calls: NDArray[np.int64]
    lines: NDArray[np.int64]
    reuse: NDArray[np.int64]
    rows: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        contraction: Contraction,
        kernel: Microkernel,
        dims: Sequence[str],
        steps: NDArray[np.int64],
        l2: float,
    ) -> Self:
        """Count panels; ``steps[i, j]`` is of loop ``dims[j]`` in schedule i, ``l2`` in bytes."""
        compute = COMPUTES[kernel.compute]
        inside = {dim.name: np.full(len(steps), dim.extent) for dim in contraction.dims}
        of_b = [dim.name for dim in contraction.dims if contraction.b.uses(dim.name)]
        calls = moved = reuse = np.ones(len(steps), dtype=np.int64)
        item = contraction.packed_item(compute)
        size = np.full(len(steps), item * prod(map(contraction.extent, of_b)))
        for position, dim in enumerate(dims):
            trips = -(-inside[dim] // steps[:, position])
            step = np.minimum(inside[dim], steps[:, position])
            if dim in of_b:
                calls, moved = np.where(trips > 1, 1, calls), np.maximum(moved, trips)
                size = size // inside[dim] * step
            else:
                calls, reuse = calls * trips, np.where(size <= l2, reuse * trips, reuse)
            inside[dim] = step
        column = inside[columns_of(contraction).name]
        lines = -(-column * compute.vnni_factor * item // LINE)
        rows = prod((inside[d.name] for d in contraction.by_role("m")), start=np.ones_like(size))
        return cls(size, np.where(moved > 1, calls, 0), lines, reuse, rows)

    def follow(self, l2: float) -> NDArray[np.bool_]:
        """Return where L2 has room for a panel and the next one, which comes meanwhile."""
        streamed = (self.calls == 1) & (self.reuse == 1) & (self.rows >= prior_of("ahead_rows"))
        fits: NDArray[np.bool_]
        fits = ((self.calls > 1) | streamed) & (2 * self.size <= prior_of("ahead_cache") * l2)
        return fits

    def shares(self, ahead: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The part of the calls during which B arrives: its first reads, or prefetches."""
        most = -(-self.lines // np.maximum(self.calls, 1))
        part: NDArray[np.float64]
        part = np.where(ahead, -(-self.lines // most), 1) / self.reuse
        return part


def panels_beyond(
    contraction: Contraction,
    kernel: Microkernel,
    dims: Sequence[str],
    steps: NDArray[np.int64],
    l2: float,
) -> Panels | None:
    """The panels of B where all of them exceed ``l2`` bytes and a kernel can prefetch them."""
    of_b = prod(dim.extent for dim in contraction.dims if contraction.b.uses(dim.name))
    if kernel.family != "brgemm" or not kernel.in_vectors or contraction.swapped:
        return None
    if of_b * COMPUTES[kernel.compute].bytes <= l2:
        return None
    return Panels.of(contraction, kernel, dims, steps, l2)


def follow_in_cache(
    contraction: Contraction,
    kernel: Microkernel,
    dims: Sequence[str],
    steps: NDArray[np.int64],
    l2: float,
) -> NDArray[np.bool_]:
    """Return which schedules take ``ahead(B)``: B exceeds L2, which has room for two panels."""
    panels = panels_beyond(contraction, kernel, dims, steps, l2)
    if panels is None or contraction.a.block > 1:
        return np.zeros(len(steps), dtype=np.bool_)
    return panels.follow(l2)


def _check_pixels(contraction: Contraction, schedule: Schedule) -> None:
    """Raise UnsupportedError unless ``ahead(B)`` can prefetch the next columns of x.

    Calls of several rows read the same columns before the next ones come.
    """
    loops = [loop.dim for loop in schedule.loops]
    rows = [dim.name for dim in contraction.by_role("m")]
    columns = [dim.name for dim in contraction.by_role("n") if dim.extent > 1]
    copied = bool(schedule.pack) or has_window(contraction)
    if copied or not set(loops[-1:]) <= set(rows) or not set(columns) & set(loops):
        raise UnsupportedError(
            f"schedule {schedule}: ahead(B) with swapped factors needs x as it lies, one tap, and "
            "the loop over rows inside the one over its pixels"
        )


def toggle_ahead(schedule: Schedule) -> Schedule:
    """Return the schedule with ``ahead(B)`` if it has none, without it if it has one."""
    return schedule.without(Ahead) if schedule.has(Ahead) else schedule.having(Ahead())


def ahead_may_pay(contraction: Contraction, l2: float) -> bool:
    """Return whether x exceeds ``l2`` bytes: a panel of columns has a line in many pages of it."""
    x = contraction.x
    in_place = contraction.image is not None and not has_window(contraction)
    return in_place and prod(x.shape) * x.bytes > l2


def _panels_part(tile: Tile, reuse: PanelReuse) -> TilePart:
    """Return what a tile function adds: lines a step, and the distance at which they lie."""
    item, call = tile.plan.packed_item, Variable("call")
    lines = -(-tile.step * tile.plan.compute.vnni_factor * item // LINE)
    count, first, end = share_lines(lines, reuse.calls)
    when: list[Condition] = [Flag("panel")]
    when += [compare(call, ">=", first)] * (first > 0)
    when += [compare(call, "<", end)] * (end < reuse.calls)
    place = item * Variable("panel") + count * LINE * (call - first)
    return TilePart(
        ("call", "panel"),
        (Comment(PREFETCH), Let("next", choose(every(when), place, 0))),
        {"ahead": count, "next": Variable("next")},
    )


def _pixels_part(tile: Tile) -> TilePart:
    """Return the reduction of swapped factors: its first calls prefetch the next columns of x."""
    call, line = Variable("n") // tile.plan.tile[tile.plan.panel_dim], LINE // 4
    lines = tile.width // line + 1
    following = choose(compare(call, "<", lines), tile.width + line * call, 0)
    return TilePart(sums=run_rows(tile, following))


def call_number(reuse: PanelReuse, origin: Mapping[str, Index]) -> Index:
    """Return how many calls that read the same panel of B came before this one."""
    positions, strides, inside = dict[str, Index](), dict[str, int](), 1
    for level, loop in reversed([*enumerate(reuse.inner)]):
        positions[str(level)] = _position(loop, origin) // loop.step
        strides[str(level)] = inside
        inside *= loop.trips
    return linear(strides, positions)


def next_panel(reuse: PanelReuse, tile: Tile, origin: Mapping[str, Index]) -> Index:
    """Return the elements of packed B from this call's panel to the one that is read next.

    The innermost loop that goes on moves by its step; the loops inside it start again. In a network
    the next layer's weights lie behind the last panel.
    """
    strides, outer = tile.panel_strides(), reuse.outer
    distance = _behind(tile, origin)
    for level, loop in enumerate(outer):
        step = strides.get(loop.dim, 0) * loop.step
        moved = as_index(step) - _returns(outer[level + 1 :], strides, origin)
        distance = choose(_goes_on(loop, origin, tile.plan.extent(loop.dim)), moved, distance)
    return distance


def _behind(tile: Tile, origin: Mapping[str, Index]) -> Index:
    """Return the elements from this call's panel to the end of what was packed ahead."""
    plan = tile.plan
    if plan.contraction.packs_b:
        return as_index(0)
    strides = {dim: -stride for dim, stride in tile.panel_strides().items()}
    return linear(strides, origin, round_up(plan.packed_bytes) // plan.packed_item)


def _returns(
    loops: Sequence[NestedLoop], strides: Mapping[str, int], origin: Mapping[str, Index]
) -> Index:
    """Return what loops over B subtract that start again."""
    outermost = {loop.dim: loop for loop in reversed(loops) if loop.dim in strides}
    positions = {dim: _position(loop, origin) for dim, loop in outermost.items()}
    return linear(strides, positions)


def _goes_on(loop: NestedLoop, origin: Mapping[str, Index], whole: int) -> Condition:
    """Return whether a loop has another iteration."""
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
    """Return where a call's tile starts inside the block that a loop divides."""
    at = origin[loop.dim]
    return at % loop.extent if loop.nested or number_in(at) is not None else at
