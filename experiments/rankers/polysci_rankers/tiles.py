"""Tile sizes by optimisation: a few classes of loop orders, each with its best real sizes.

After MOpt (Li et al., ASPLOS 2021): how often an operand is fetched depends only on which loops
are at or outside the innermost one that indexes it. So the orders of a level's loops form a few
classes, and a class that another one never exceeds is dropped. For each class a continuous problem
gives the block sizes; they are rounded to whole register tiles and their neighbours compared. Two
levels of loops replace MOpt's four: register tiles for L1, cache blocks for L2 and L3, since the
taps and the inner part of the reduction are inside the microkernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import prod

import numpy as np

from polysci.cost.estimate import Context
from polysci.cost.rankers import Way, competitive_ways
from polysci.errors import SpecError, UnsupportedError
from polysci.polyhedral.contraction import Contraction, columns_of
from polysci.space import enumerate as space
from polysci.space.enumerate import Family, RegisterTile, least_depth
from polysci.space.resolve import resolve
from polysci_rankers.bottleneck import bottleneck, capacities
from polysci_rankers.continuous_tiles import Blocks, Levels, solve

MOST_TILES = 3  # register tiles for which sizes are optimised
KEPT = 3  # rounded sizes of each order and register tile
ALIKE = 2  # orders of one class: they differ in the loop that the threads share
DEPTH_UNIT = 16  # steps of the reduction: whole lines of A

Order = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """The loops of a layer: fixed ones outside, blockable ones, loops over register tiles.

    Blocks of a dimension are multiples of its entry in ``units``, and at least that in ``least``.
    """

    fixed: Order
    blockable: Order
    points: tuple[Order, ...]
    units: Mapping[str, int]
    least: Mapping[str, int]
    images: Order


def families(context: Context, tiles: int, blocks: int) -> Iterator[Family]:
    """Rounded optima of all classes, for the best ``tiles`` register tiles, ``MOST_TILES`` at most.

    The sizes determine which dimensions have blocks: ``blocks`` only matters where it is 0, which
    leaves loops over register tiles only. Every member resolves.
    """
    for way in competitive_ways(context):
        yield from _families_of(context, way, min(tiles, MOST_TILES), blocks)


def _families_of(context: Context, way: Way, tiles: int, blocks: int) -> Iterator[Family]:
    """The families of the kernels of one way to multiply."""
    shapes = tuple(space.register_tiles(context.contraction, context.strides, way, tiles))
    sized: dict[Order, dict[tuple[int, tuple[int, ...]], None]] = {}
    for which, tile in enumerate(shapes):
        shape = shape_of(context, tile)
        if not blocks:
            shape = replace(shape, blockable=())
        for dims, steps in _size_orders(context, tile, shape):
            sized.setdefault(dims, {})[which, steps] = None
    for dims, members in sized.items():
        family = _with_knobs(context, dims, shapes, list(members))
        if family is not None:
            yield family


def shape_of(context: Context, tile: RegisterTile) -> Shape:
    """The loops around a register tile."""
    contraction = context.contraction
    column, rows = columns_of(contraction), space.row_dims(contraction, context.strides)
    sizes, inner = dict(tile.sizes), rows[-2:]
    fixed = [d.name for d in contraction.by_role("batch") if d.name != column.name and d.extent > 1]
    depths = [d.name for d in contraction.by_role("k") if d.extent > least_depth()]
    blocked = [column.name, *(d.name for d in inner[:1]), *depths]
    units = {name: DEPTH_UNIT if name in depths else sizes[name] for name in blocked}
    smallest = {name: least_depth() if name in depths else sizes[name] for name in blocked}
    names = [d.name for d in inner]
    orders = [(*names[:at], column.name, *names[at:]) for at in range(len(names) + 1)]
    return Shape(
        tuple(fixed),
        tuple(n for n in blocked if smallest[n] < contraction.extent(n)),
        tuple(group[0] for group in classes(contraction, orders)),
        units,
        smallest,
        tuple(d.name for d in rows[:-2]),
    )


def classes(contraction: Contraction, orders: Sequence[Order]) -> list[list[Order]]:
    """Orders grouped by how often they fetch the operands, without groups that another never
    exceeds.

    For each operand, the loops at or outside the innermost one that indexes it: its footprint is
    fetched once for every iteration of them.
    """
    by_volume: dict[tuple[frozenset[str], ...], list[Order]] = {}
    for order in orders:
        around = tuple(
            frozenset(order[: max((i + 1 for i, d in enumerate(order) if op.uses(d)), default=0)])
            for op in (contraction.a, contraction.b, contraction.out)
        )
        by_volume.setdefault(around, []).append(order)
    return [
        group
        for volume, group in by_volume.items()
        if not any(_below(other, volume) for other in by_volume)
    ]


def _below(volume: tuple[frozenset[str], ...], other: tuple[frozenset[str], ...]) -> bool:
    return volume != other and all(a <= b for a, b in zip(volume, other, strict=True))


def _outer_orders(contraction: Contraction, shape: Shape) -> list[list[Order]]:
    """Classes of the orders of images and blocks; in each class, reductions innermost."""
    reductions = {d.name for d in contraction.by_role("k")}
    every = list(permutations([*shape.images, *shape.blockable]))
    chosen = []
    for group in classes(contraction, every):
        group.sort(key=lambda order: [name in reductions for name in order])
        by_first: dict[str, Order] = {}
        for order in group:
            by_first.setdefault(order[0] if order else "", order)
        chosen.append(list(by_first.values())[:ALIKE])
    return chosen


def _size_orders(
    context: Context, tile: RegisterTile, shape: Shape
) -> Iterator[tuple[Order, tuple[int, ...]]]:
    """Loops and integer steps of all classes, for one register tile."""
    for group in _outer_orders(context.contraction, shape):
        candidates: dict[Order, dict[tuple[int, ...], None]] = {
            points: {} for points in shape.points
        }
        for blocks in problems(context, tile, shape, group[0]):
            sizes = [
                tuple(rounded[name] for name in shape.blockable)
                for rounded in round_tiles(blocks, solve(blocks), shape.units)
            ]
            own = blocks.dims[blocks.block :]
            for points in [own] if blocks.keeps_l1 else shape.points:
                candidates[points] |= dict.fromkeys(sizes)
        for points, order in product(shape.points, group):
            yield from _best(context, tile, shape, order, points, list(candidates[points]))


def problems(context: Context, tile: RegisterTile, shape: Shape, order: Order) -> Iterator[Blocks]:
    """The continuous problems of one order: L3 keeps all or a part, L1 nothing or one call.

    Where L1 keeps nothing, all orders of the register-tile loops are alike.
    """
    sizes = dict(tile.sizes)
    outer = (*shape.fixed, *order)
    smallest = tuple(shape.least[name] for name in shape.blockable)
    for points in shape.points:
        dims = (*outer, *points)
        steps = tuple(sizes.get(dim, 1) for dim in dims)
        at = tuple(dims.index(name) for name in shape.blockable)
        blocks = Blocks(
            context, dims, steps, shape.blockable, at, smallest, len(outer),
            shared=_leading(context, outer),
        )  # fmt: skip
        parts = [0] if fits(blocks, 2) else sorted({min(1, len(outer)), len(outer)})
        for part in parts:
            if points == shape.points[0]:
                yield replace(blocks, outer=part)
            if fits(blocks, 0):
                yield replace(blocks, outer=part, keeps_l1=True)


def fits(blocks: Blocks, level: int) -> bool:
    """Whether a cache holds the problem at its smallest sizes; for L1, what one call touches."""
    levels = Levels(blocks)
    return bool(levels.bytes(levels.low[None])[1][level, 0] <= capacities(blocks.context)[level])


def _leading(context: Context, dims: Order) -> int:
    """How many loops the threads may share: the leading ones that are no reductions."""
    reductions = {d.name for d in context.contraction.by_role("k")}
    if context.threads == 1:
        return 0
    return next((i for i, dim in enumerate(dims) if dim in reductions), len(dims))


def round_tiles(
    blocks: Blocks, sizes: Mapping[str, float], units: Mapping[str, int]
) -> list[dict[str, int]]:
    """Feasible integer sizes around real ones: multiples of ``units`` and even divisions.

    A size equal to the extent means no block. The next smaller multiples are always included:
    they touch a subset of what the real sizes touch.
    """
    if not blocks.names:
        return [{}]
    options = []
    for name, smallest in zip(blocks.names, blocks.least, strict=True):
        extent, unit = blocks.context.contraction.extent(name), units[name]
        down = max(int(sizes[name] * (1 + 1e-9)) // unit * unit, int(smallest))
        parts = max(1, round(extent / sizes[name]))
        even = {-(-extent // (n * unit)) * unit for n in (parts, parts + 1)}
        near = {down - unit, down, down + unit, down + 2 * unit, *even}
        options.append(sorted({min(n, extent) for n in near if n >= smallest}))
    every = list(product(*options))
    feasible = Levels(blocks).feasible(np.log(np.array(every, dtype=np.float64)))
    return [
        dict(zip(blocks.names, n, strict=True)) for n, ok in zip(every, feasible, strict=True) if ok
    ]


def _best(
    context: Context,
    tile: RegisterTile,
    shape: Shape,
    order: Order,
    points: Order,
    candidates: Sequence[tuple[int, ...]],
) -> Iterator[tuple[Order, tuple[int, ...]]]:
    """The best integer sizes of one order, as loops and steps; full extents have no block loop."""
    sizes, extents = dict(tile.sizes), {d.name: d.extent for d in context.contraction.dims}
    dims = (*shape.fixed, *order, *points)
    inside = len(shape.fixed) + len(order)
    steps = [sizes.get(dim, 1) for dim in dims]
    at = [dims.index(name) for name in shape.blockable]
    rows = np.tile(np.array(steps, dtype=np.int64), (len(candidates), 1))
    rows[:, at] = np.array(candidates, dtype=np.int64).reshape(len(candidates), len(at))
    size, leading = len(rows), _leading(context, dims[:inside])
    packed = needs_packing(context)
    family = Family(
        dims, rows, np.zeros(size, dtype=np.intp), (tile,), extents,
        np.full(size, 0 if packed else -1, dtype=np.intp),
        np.full(size, leading, dtype=np.intp),
    )  # fmt: skip
    cost = bottleneck(context, family)
    for index in np.argsort(cost, kind="stable")[:KEPT]:
        loops = [
            (dim, int(step))
            for depth, (dim, step) in enumerate(zip(dims, rows[index], strict=True))
            if depth >= inside or step < extents[dim]
        ]
        yield tuple(dim for dim, _ in loops), tuple(step for _, step in loops)


def needs_packing(context: Context) -> bool:
    """Whether A must be packed: it is not contiguous along the columns that index it."""
    a = context.contraction.a
    stride = a.offset(context.strides[a.array]).coef(columns_of(context.contraction).name)
    return stride not in (0, 1)


def _with_knobs(
    context: Context,
    dims: Order,
    shapes: tuple[RegisterTile, ...],
    members: Sequence[tuple[int, tuple[int, ...]]],
) -> Family | None:
    """One order with every choice of packing, threads and streaming; None if none resolves."""
    contraction, strides = context.contraction, context.strides
    large = float(contraction.out.bytes) * prod(contraction.out.shape) > context.streamed
    which, rows = ([member[at] for member in members] for at in (0, 1))
    order = space.LoopOrder(
        contraction, strides, dims, np.array(rows, dtype=np.int64).reshape(len(rows), len(dims)),
        np.array(which, dtype=np.intp), shapes, large, context.target.second_level.size,
    )  # fmt: skip
    few = space.family_of(order, context.threads) if members else None
    if few is None:
        return None
    right = np.array([i for i in range(len(few)) if _resolves(context, few, i)], dtype=np.intp)
    return few.select(right) if len(right) else None


def _resolves(context: Context, family: Family, index: int) -> bool:
    try:
        resolve(context.contraction, context.strides, family.schedule(index))
    except (SpecError, UnsupportedError):
        return False
    return True
