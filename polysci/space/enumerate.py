"""Schedules to consider, in a deterministic order, as families that differ in steps only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations, product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysci.numerics.dtypes import COMPUTES
from polysci.polyhedral.contraction import (
    Contraction,
    Dim,
    Strides,
    columns_of,
    long_reductions,
    owned_rows,
)
from polysci.polyhedral.tile_schedule import Loop
from polysci.space import directives
from polysci.space.directives import Directive, Pack, Place
from polysci.space.directives.private import MOST_COPIES, needs_copy
from polysci.space.group_views import shift_of
from polysci.space.knobs import knobs_of, pad_of, place_outermost
from polysci.space.packed_copy import beside_in_copy
from polysci.space.padding import cut_axes
from polysci.space.schedule import Schedule, Step
from polysci.space.stencil_roles import is_stencil, windows_of
from polysci.target.coefficients import prior_of
from polysci.target.isas import isa_of
from polysci.target.microkernels import Microkernel, lanes, on_vectors, shorter, ways

# Policies: which sizes are tried.
FACTORS = (2, 3, 4, 6, 8, 12, 16, 24, 32)  # cache blocks, in register tiles
SHARES = (2, 3, 4, 6, 8, 16)  # parts into which one reduction may be split
FEW_SHARES = (2, 4)  # where images and their rows may both be split
LONGEST_FILTER = 16  # taps along an axis: longer reductions over one are images


def least_depth() -> int:
    """Return the steps of a reduction below which a call costs more than it computes."""
    return int(prior_of("least_depth"))


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """Extents of one microkernel call: dimension -> size, and the kernel that computes it."""

    kernel: Microkernel
    sizes: tuple[tuple[str, int], ...]
    rows: int


@dataclass(frozen=True, slots=True)
class LoopOrder:
    """The schedules of one loop order, before their directives: ``steps`` as of a ``Family``.

    ``large``: the result exceeds the caches. ``l2`` is in bytes.
    """

    contraction: Contraction
    strides: Strides
    dims: tuple[str, ...]
    steps: NDArray[np.int64]
    which: NDArray[np.intp]
    tiles: tuple[RegisterTile, ...]
    large: bool
    l2: float

    @property
    def kernel(self) -> Microkernel:
        return self.tiles[0].kernel


@dataclass(frozen=True, slots=True)
class Family:
    """Schedules with the same loop order: ``steps[i, j]`` is the step of loop j in schedule i.

    ``which[i]`` is the index of its register tile in ``tiles``; ``parallel[i]`` counts the leading
    parallel loops; ``pack[i]`` is the number of loops around the packing, -1 for none, and ``pad``
    its padding; ``marks`` says of rows of ``DIRECTIVES`` which schedules have them (those that it
    lacks: none). Parallel loops over ``reductions`` sum into private copies, of a ``narrow`` C all
    loops over them. ``panels[i]`` loops are around copies of parts of B, 0 where it is whole (None:
    everywhere). Loops that run once are kept, so that all members have the same loops.
    """

    dims: tuple[str, ...]
    steps: NDArray[np.int64]
    which: NDArray[np.intp]
    tiles: tuple[RegisterTile, ...]
    extents: Mapping[str, int]
    pack: NDArray[np.intp]
    parallel: NDArray[np.intp]
    marks: Mapping[type[Directive], NDArray[np.bool_]] = field(default_factory=dict)
    pad: int = 0
    reductions: frozenset[str] = frozenset()
    narrow: bool = False
    panels: NDArray[np.intp] | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def member(self, index: int) -> Family:
        """The family of that schedule alone."""
        return self.select(slice(index, index + 1))

    def select(self, at: slice | NDArray[Any]) -> Family:
        """The family of some of its schedules."""
        parts = {part: getattr(self, part)[at] for part in ("steps", "which", "pack", "parallel")}
        panels = None if self.panels is None else self.panels[at]
        return replace(
            self, **parts, panels=panels, marks={row: on[at] for row, on in self.marks.items()}
        )

    def has(self, row: type[Directive]) -> NDArray[np.bool_]:
        """Return which members have a directive of a row of the table."""
        return self.marks.get(row, np.zeros(len(self), dtype=bool))

    def schedule(self, index: int) -> Schedule:
        """Return one member as a schedule, without the loops that run once."""
        current, nest = dict(self.extents), list[Step]()
        for position, (dim, step) in enumerate(zip(self.dims, self.steps[index], strict=True)):
            if position == self.pack[index]:
                nest.append(Pack(self.pad))
            if step < current[dim]:
                nest.append(Loop(dim, int(step), bool(position < self.parallel[index])))
                current[dim] = int(step)
        if self.pack[index] == len(self.dims):
            nest.append(Pack(self.pad))
        kernel = self.tiles[self.which[index]].kernel
        loops = [step for step in nest if isinstance(step, Loop)]
        first, last = (
            [row.of_member(self, index, loops) for row in directives.standing(place)]
            for place in (Place.FIRST, Place.LAST)
        )
        return Schedule(tuple(step for step in (*first, *nest, *last) if step), str(kernel))


def even_splits(extent: int, limit: int, count: int = 4) -> list[int]:
    """Largest sizes up to ``limit`` that cut ``extent`` into equal parts, the last one smaller."""
    sizes: list[int] = []
    parts = -(-extent // max(1, limit))
    while len(sizes) < count and parts <= extent:
        size = -(-extent // parts)
        if size not in sizes:
            sizes.append(size)
        parts += 1
    return sizes


def row_dims(contraction: Contraction, strides: Strides) -> list[Dim]:
    """Row dimensions with more than one position: windows outside, then the fastest in C last."""
    offset = contraction.out.offset(strides[contraction.out.array])
    rows = [d for d in contraction.dims if d.role == "m" and d.extent > 1]
    return sorted(rows, key=lambda d: (not _is_window(contraction, d), -offset.coef(d.name)))


def _is_window(contraction: Contraction, row: Dim) -> bool:
    """Return whether a row slides along a longer reduction, as filter taps do along an image."""
    along = [affine for affine in contraction.a.index if affine.coef(row.name)]
    long = long_reductions(contraction)
    return any(
        affine.coef(dim.name) and (dim in long or dim.extent > max(row.extent, LONGEST_FILTER))
        for affine in along
        for dim in contraction.by_role("br")
    )


def ways_of(contraction: Contraction, isa: str) -> tuple[tuple[Microkernel, ...], ...]:
    """The kernels of every way in which an ISA computes it.

    A stencil whose rows fit a shorter vector takes that: fewer loads cross a cache line. Where taps
    shift the vectors of B, a step holds these in registers, and an element of A. Outer products
    take x as A and panels as B, and no weights in blocks.
    """
    if contraction.swapped or contraction.plain or contraction.a.block > 1:
        isa = on_vectors(isa)
    if is_stencil(contraction):
        pixels = columns_of(contraction).extent
        fit = [name for name in shorter(isa) if lanes(name) >= pixels]
        isa = min(fit, key=lanes, default=isa)
    every = ways(_family_for(contraction), isa, contraction.multiplied)
    if _stacks(contraction):
        every += ways("stacked", isa, contraction.multiplied)
    if not contraction.image or all(d.extent == 1 for d in contraction.by_role("br")):
        return every
    most = isa_of(isa).registers
    return tuple(
        tuple(kernel for kernel in way if (kernel.rows + 1) * kernel.vecs < most) for way in every
    )


def register_tiles(
    contraction: Contraction, strides: Strides, kernels: Sequence[Microkernel], limit: int
) -> list[RegisterTile]:
    """Shapes of one call of ``kernels``, which are of one way; best use of the FMA units first."""
    column, rows = columns_of(contraction), row_dims(contraction, strides)
    inner = rows[-1] if rows else None
    outer = rows[-2] if len(rows) > 1 else None
    most: dict[int, int] = {}
    for kernel in kernels:
        most[kernel.vecs] = max(most.get(kernel.vecs, 0), kernel.rows)
    by_shape = {(kernel.rows, kernel.vecs): kernel for kernel in kernels}
    tiles: dict[tuple[tuple[str, int], ...], RegisterTile] = {}
    lanes, whole = kernels[0].lanes, kernels[0].panel_lanes
    for vecs, limit_rows in most.items():
        width = min(vecs * lanes, column.extent)
        if -(-width // whole) * whole < vecs * lanes:
            continue
        for q in even_splits(inner.extent, limit_rows) if inner else [1]:
            lines = inner is None or q == inner.extent
            several = lines and outer and not kernels[0].stacked
            p_limit = limit_rows // q if several else 1
            for p in sorted({*even_splits(outer.extent, p_limit, 3), 1} if outer else {1}):
                if p * q > limit_rows:
                    continue
                sizes = {column.name: width}
                sizes |= {inner.name: q} if inner else {}
                sizes |= {outer.name: p} if outer else {}
                tile = RegisterTile(by_shape[p * q, vecs], tuple(sizes.items()), p * q)
                tiles[tile.sizes] = tile
    ranked = sorted(tiles.values(), key=lambda tile: -_use(contraction, tile))
    return ranked[:limit]


def _family_for(contraction: Contraction) -> str:
    """The family of microkernels that computes it."""
    column = columns_of(contraction).name
    if not contraction.a.uses(column):
        return "brgemm"
    if is_stencil(contraction):
        step = contraction.a.index[-1].coef(column)
        return f"stencil{step}" if step > 1 else "stencil"
    shift = shift_of(contraction)
    return f"grouped{shift.extent}" if shift else "depthwise"


def _stacks(contraction: Contraction) -> bool:
    """Return whether a depthwise filter has several rows, above the pixels of a line of several."""
    if _family_for(contraction) != "depthwise":
        return False
    taps = [d for d in contraction.by_role("br") if contraction.a.uses(d.name)]
    if len(taps) != 2 or taps[0].extent == 1:
        return False
    extents = {d.name: d.extent for d in contraction.by_role("m")}
    below, along = (
        [affine for affine in contraction.a.index if affine.coef(tap.name) > 0] for tap in taps
    )
    wide = any(extents.get(name, 1) > 1 for affine in along for name, _ in affine.terms)
    return len(below) == len(along) == 1 and below != along and wide


def _use(contraction: Contraction, tile: RegisterTile) -> float:
    """Share of the issued FMA lanes that do work, less what too few accumulators leave idle."""
    issued, useful = 1.0, 1.0
    extents = {d.name: d.extent for d in contraction.dims}
    for dim, size in tile.sizes:
        useful *= extents[dim]
        lanes = tile.kernel.panel_lanes if dim == tile.sizes[0][0] else 1
        issued *= -(-extents[dim] // size) * (-(-size // lanes) * lanes)
    if side := tile.kernel.outer_products:  # a step loads a vector of A, turned before, and B's
        across = -(-tile.kernel.cols // side)
        return float(useful / issued * tile.rows / side * across / (across + 2))
    if registers := tile.kernel.tile_registers:  # square arrangements of them load least
        down, across = -(-tile.rows // registers.rows), tile.kernel.vecs
        used = min(1.0, down * across / registers.sums)
        busy = used * min(1.0, down * across / (down + across)) ** prior_of("tile_loads_power")
        return float(useful / issued * busy)
    of_b = tile.kernel.vecs * tile.kernel.shifts
    accumulators = tile.rows * of_b
    hidden = accumulators / prior_of("in_flight")
    if tile.kernel.stencil:  # multiplications for each vector of x, most of which cross a line
        window = windows_of(contraction)[0]
        loads = tile.rows * window.taps / window.span(tile.rows)
        return useful / issued * min(1.0, hidden, loads / prior_of("stencil_loads"))
    loads = accumulators / (tile.rows + of_b)
    slowed = min(1.0, loads / prior_of("tile_loads")) ** prior_of("tile_loads_power")
    busy = float(min(1.0, hidden) * slowed)
    return useful / issued * busy


def schedules(
    contraction: Contraction,
    strides: Strides,
    kernels: Sequence[Microkernel],
    threads: int = 1,
    *,
    tiles: int = 8,
    blocks: int = 2,
    cache: float = float("inf"),
    l2: float = 0.0,
) -> Iterator[Family]:
    """Every family of one way's ``kernels``; ``blocks`` bounds the dimensions with cache blocks.

    Outputs of more than ``cache`` bytes may also be stored past the caches. Weights of more than
    ``l2`` bytes are prefetched wherever two panels fit there.
    """
    large = float(contraction.out.bytes) * prod(contraction.out.shape) > cache
    shapes = tuple(register_tiles(contraction, strides, kernels, tiles))
    kernel = shapes[0].kernel
    choices = [_choices(contraction, strides, tile) for tile in shapes]
    for blocked, dims in _orders(contraction, strides, blocks, kernel):
        rows, which = list[tuple[int, ...]](), list[int]()
        for index, (tile, choice) in enumerate(zip(shapes, choices, strict=True)):
            sizes = dict(tile.sizes)
            options = [
                choice.get(dim, []) if dim in dims[position + 1 :] or (dim in blocked)
                else [sizes.get(dim, 1)]
                for position, dim in enumerate(dims)
            ]  # fmt: skip
            members = list(product(*options))
            rows += members
            which += [index] * len(members)
        if rows:
            steps = np.array(rows, dtype=np.int64).reshape(len(rows), len(dims))
            base = np.array(which, dtype=np.intp)
            order = LoopOrder(contraction, strides, dims, steps, base, shapes, large, l2)
            if family := family_of(order, threads):
                yield family


def family_of(order: LoopOrder, threads: int) -> Family | None:
    """Return the schedules of a loop order with all its knobs and directives; None if it has none.

    Each directive doubles the family that may stand in a schedule or not.
    """
    contraction, strides, kernel = order.contraction, order.strides, order.kernel
    knobs = knobs_of(contraction, strides, order.dims, threads, kernel)
    if not knobs:
        return None
    marks, forms = _marks_of(order, len(knobs))
    copies, size = len(knobs) * forms, len(order.steps)
    pack, parallel = (np.tile(np.repeat(knob, size), forms) for knob in zip(*knobs, strict=True))
    steps, extents = np.tile(order.steps, (copies, 1)), contraction.extents
    family = Family(
        order.dims,
        steps,
        np.tile(order.which, copies),
        order.tiles,
        extents,
        place_outermost(pack, order.dims, steps, extents),
        parallel,
        marks,
        pad_of(contraction, strides, kernel),
        contraction.reductions,
        needs_copy(contraction, kernel),
    )
    return family.select(sums_in_few_copies(family, threads))


def _marks_of(order: LoopOrder, knobs: int) -> tuple[dict[type[Directive], NDArray[np.bool_]], int]:
    """Return which members have which directives, and how many forms these make of each.

    A form holds each schedule of the order ``knobs`` times.
    """
    variants = {row: row.variants(order) for row in reversed(directives.DIRECTIVES)}
    rows = [row for row, options in variants.items() if options]
    forms = [*product(*(variants[row] for row in rows))]
    marks = {
        row: np.concatenate([np.tile(form[at], knobs) for form in forms])
        for at, row in enumerate(rows)
    }
    return marks, len(forms)


def sums_in_few_copies(family: Family, threads: int) -> NDArray[np.bool_]:
    """Return which members have no private copies, or a few that every thread has a part in."""
    copies, around = np.ones(len(family)), dict[str, Any](family.extents)
    for position, dim in enumerate(family.dims):
        turns = -(-around[dim] // family.steps[:, position])
        around[dim] = family.steps[:, position]
        if dim in family.reductions:
            copies = copies * np.where(position < family.parallel, turns, 1)
    few: NDArray[np.bool_] = (copies == 1) | (copies <= min(MOST_COPIES, max(4, 2 * threads)))
    return few


def _orders(
    contraction: Contraction, strides: Strides, blocks: int, kernel: Microkernel
) -> Iterator[tuple[frozenset[str], tuple[str, ...]]]:
    """Loop orders: batch, images and cache blocks outside in any order, register tiles inside.

    With each order, the reductions in it: they have a block but no register-tile loop. The rows by
    which threads of a network share a tensor may be outside the batch too.
    """
    column, rows = columns_of(contraction), row_dims(contraction, strides)
    around = [
        d.name for d in contraction.by_role("batch") if d.name != column.name and d.extent > 1
    ]
    images, owned = [d.name for d in rows[:-2]], owned_rows(contraction, strides)
    splits = contraction.out.dtype == COMPUTES[kernel.compute].sum.name  # C can keep a sum
    splits = splits or needs_copy(contraction, kernel)
    depths = [d.name for d in contraction.by_role("k") if splits and d.extent > least_depth()]
    if kernel.family == "brgemm" and not contraction.swapped:  # other calls take taps whole
        depths += [d.name for d in _images(contraction) if splits]
    blockable = [
        column.name,
        *(d.name for d in _blocked_rows(contraction, strides, kernel)),
        *depths,
    ]
    for count in range(min(blocks, len(blockable)) + 1):
        for blocked in combinations(blockable, count):
            for outer in permutations([*images, *blocked]):
                rows_first = around and owned and outer[:1] == (owned.name,)
                for point in _point_orders([d.name for d in rows[-2:]], column.name):
                    reductions = frozenset(blocked) & frozenset(depths)
                    yield reductions, (*around, *outer, *point)
                    if rows_first:
                        yield reductions, (*outer[:1], *around, *outer[1:], *point)


def _blocked_rows(contraction: Contraction, strides: Strides, kernel: Microkernel) -> list[Dim]:
    """Rows with cache blocks: all but the innermost, and that too if copies keep its steps."""
    rows = row_dims(contraction, strides)[-2:]
    beside = beside_in_copy(contraction, strides[contraction.a.array], kernel)
    return [row for row in rows if row is not rows[-1] or row == beside]


def _choices(
    contraction: Contraction, strides: Strides, tile: RegisterTile
) -> dict[str, list[int]]:
    """Cache blocks of every dimension that can have one."""
    column = columns_of(contraction)
    sizes, blocks = dict(tile.sizes), dict[str, list[int]]()
    for dim in (column, *_blocked_rows(contraction, strides, tile.kernel)):
        size = sizes[dim.name]
        steps = {size * factor for factor in FACTORS}
        steps |= {-(-dim.extent // (share * size)) * size for share in SHARES[:3]}
        blocks[dim.name] = sorted(step for step in steps if size < step < dim.extent)
    for dim in contraction.by_role("k"):
        parts = {-(-dim.extent // share) for share in SHARES}
        parts = {-(-part // 16) * 16 for part in parts}
        blocks[dim.name] = sorted(p for p in parts if least_depth() <= p < dim.extent)
    return blocks | _tap_blocks(contraction, sizes)


def _tap_blocks(contraction: Contraction, sizes: Mapping[str, int]) -> dict[str, list[int]]:
    """Blocks of reductions longer than a filter; where padding cuts, of one row a tile alone."""
    images = _images(contraction)
    if not images:
        return {}
    rows = {tap: row for row, (_, tap) in cut_axes(contraction).items()}
    shares = FEW_SHARES if long_reductions(contraction) else SHARES
    return {
        dim.name: sorted({1, *(-(-dim.extent // share) for share in shares)} - {dim.extent})
        for dim in images
        if dim.name not in rows or sizes.get(rows[dim.name], 1) == 1
    }


def _images(contraction: Contraction) -> tuple[Dim, ...]:
    """Reductions longer than a filter: of images all but their rows, which are runs of steps."""
    if long := long_reductions(contraction):
        return long[:-1] or long
    return tuple(dim for dim in contraction.by_role("br") if dim.extent > LONGEST_FILTER)


def _point_orders(rows: list[str], column: str) -> list[tuple[str, ...]]:
    """Orders of the register-tile loops: the column outside, in the middle or inside."""
    return [(*rows[:at], column, *rows[at:]) for at in range(len(rows) + 1)]
