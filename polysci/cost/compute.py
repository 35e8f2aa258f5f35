"""Seconds of the microkernel: every register tile of a family at its measured rate."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

import numpy as np

from polysci.cost.traffic_counts import TrafficCounts
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import LINE
from polysci.numerics.dtypes import COMPUTES
from polysci.polyhedral.contraction import Contraction, Dim
from polysci.polyhedral.footprint import Count
from polysci.space.enumerate import RegisterTile
from polysci.space.padding import share_of_work, skips
from polysci.space.prefetch import RowsAhead


def compute_seconds(nest: TrafficCounts) -> Count:
    """Return seconds of FMA work: register tiles at their kernels' measured rates, with tails.

    Taps in the padding are skipped, unless packing filled it and skipping would save little.
    """
    shares = [share_of_work(nest.contraction, packed=packed) for packed in (False, True)]
    skipped = np.where(nest.packed, shares[1], shares[0])
    executed = np.where(nest.packed, idle_steps(nest, packed=True), idle_steps(nest, packed=False))
    of_copy, direct = (
        nest.by_tile(lambda tile, packed=packed: _tile_seconds(nest, tile, packed=packed))  # type: ignore[misc]
        for packed in (True, False)
    )
    return np.where(nest.packed, of_copy, direct) * skipped * executed


def dot_seconds(nest: TrafficCounts) -> Count:
    """Return seconds of dot products along k, and of the sums over lanes behind every call's.

    A step loads a vector of each row and column of a block of sums; loads are as fast as FMAs, and
    columns come from L2, which takes an FMA's time more, as do rows that L1 does not keep.
    """
    context, lanes, tile = nest.context, nest.lanes, nest.tiles[nest.depth]
    coefficient, width = context.machine.coefficient, tile[nest.column.name]
    (deep,) = nest.contraction.by_role("k")
    rows = prod(
        (tile[d.name] for d in nest.contraction.dims if d.role in ("m", "batch")), start=np.ones(1)
    )
    columns = sums_beside(rows, width, lanes)
    steps = np.ceil(tile[deep.name] / lanes) * np.ceil(width / columns)
    block = np.maximum(np.maximum(rows * columns, rows + columns), coefficient("in_flight"))
    size = nest.contraction.a.bytes * rows * tile[deep.name]
    excess = size / context.target.first_level.size - 1
    lost = np.clip(coefficient("row_loss") * excess, 0.0, 1.0)
    block = block + columns + coefficient("row_l2") * rows * lost
    ends = coefficient("lane_sum") * lanes * rows * np.ceil(width / lanes)
    seconds: Count = nest.calls() * (steps * block + ends) * 2e-9 * lanes / context.peak
    return seconds


def sums_beside(rows: Count, width: Count, lanes: int) -> Count:
    """Return how many columns' sums are in registers at a time, where each is a dot product."""
    most = np.maximum(1, 3 * lanes // (2 * rows))  # sums of a row that registers hold
    usual = np.where(most >= 8, 8, np.where(most >= 4, 4, most))
    columns: Count = np.minimum(np.minimum(width, lanes), usual)
    return columns


def _tile_seconds(nest: TrafficCounts, tile: RegisterTile, *, packed: bool) -> float:
    kernel, machine, sizes = tile.kernel, nest.context.machine, dict(tile.sizes)
    around = prod(
        d.extent
        for d in nest.contraction.dims
        if d.role in ("k", "br", "m", "batch") and d.name not in sizes
    )
    column, total, asked = nest.column.name, 0.0, 0 if packed else _lines_asked(nest, tile)
    block, rounds = nest.contraction.a.block, COMPUTES[kernel.compute].bytes_of_x
    decoded = machine.coefficient("decode_a8" if rounds else "decode") if block > 1 else 0.0
    rounded = machine.coefficient(f"round_{kernel.compute}") if rounds and not packed else 0.0
    parts = [_parts(nest, name, size) for name, size in sizes.items() if name != column]
    for count, rows in _combine(parts):
        for columns, width in _parts(nest, column, sizes[column]):
            vecs = -(-width // kernel.panel_lanes) * kernel.in_lane
            name = f"{kernel.family}_{kernel.isa}_{kernel.compute}_{rows}x{vecs * nest.lanes}"
            wide = vecs * kernel.shifts
            rate = machine.of_kernel(name, rows, wide, kernel.compute)
            loads = rows + vecs + asked if asked else _load_slots(nest, rows, vecs)
            slots = max(rows * vecs / rate, 0 if rounds else loads)
            slots += decoded * vecs + rounded * rows
            total += count * columns * slots * nest.lanes * 2.0 / (machine.peak * 1e9)
    return total * around * block


def _lines_asked(nest: TrafficCounts, tile: RegisterTile) -> int:
    """Lines of x that a step of the reduction prefetches, where it reads x as it lies."""
    contraction, sizes = nest.contraction, dict(tile.sizes)
    depths = contraction.by_role("k")
    if contraction.swapped or not depths or contraction.a.block > 1:
        return 0
    offset, item = (
        contraction.x.offset(nest.context.strides[contraction.x.array]),
        contraction.x.bytes,
    )
    rows = [
        (sizes[d.name], item * offset.coef(d.name))
        for d in contraction.dims
        if d.name in sizes and d.name != nest.column.name and sizes[d.name] > 1
    ]
    step = item * offset.coef(depths[-1].name)
    ahead = RowsAhead.of(tile.kernel, rows, step, depths[-1].extent)
    return ahead.lines if ahead else 0


def _load_slots(nest: TrafficCounts, rows: int, vecs: int) -> float:
    """FMA slots that the loads of a step take where taps shift the vectors of B across lines.

    As many loads as FMAs are issued at a time; a load that crosses a line takes two.
    """
    image, taps = nest.contraction.image, nest.contraction.by_role("br")
    if image is None or all(d.extent == 1 for d in taps):
        return 0.0
    return rows + vecs * (1 + nest.lanes * nest.contraction.x.bytes / LINE)


def _parts(nest: TrafficCounts, name: str, size: int) -> list[tuple[int, int]]:
    """The tiles of a dimension as (count, size)."""
    full, rest = divmod(nest.dim(name).extent, size)
    return [(full, size)] + ([(1, rest)] if rest else [])


def _combine(parts: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Products of (count, size) over several dimensions."""
    products = [(1, 1)]
    for part in parts:
        products = [(n * count, rows * size) for n, rows in products for count, size in part]
    return products


def idle_steps(nest: TrafficCounts, *, packed: bool) -> float:
    """Reduction steps executed over those needed: runs are rounded up to the VNNI factor.

    A run is that of k, in a copy without gaps that of k and the last tap.
    """
    vnni, kernel = nest.compute.vnni_factor, nest.family.tiles[0].kernel
    contraction = nest.contraction
    if kernel.stacked:
        stacked = contraction.by_role("br")[0].extent
        return -(-stacked // vnni) * vnni / stacked
    if vnni == 1 or kernel.family != "brgemm":
        return 1.0
    steps = prod(d.extent for d in contraction.by_role("k"))
    joins = packed and nest.family.pad == 0 and not skips(contraction, packed=True)
    if joins and steps % vnni:
        steps *= _touching_taps(contraction)
    return -(-steps // vnni) * vnni / steps


def _touching_taps(contraction: Contraction) -> int:
    """Values of the last tap, if they are neighbours in a copy of A; else 1."""
    taps = [d for d in contraction.by_role("br") if contraction.a.uses(d.name)]
    if not taps:
        return 1
    axis = next(affine for affine in contraction.a.index if affine.coef(taps[-1].name))
    extents = {d.name: d.extent for d in contraction.dims}
    apart = gcd(*(coef for name, coef in axis.terms if extents[name] > 1))
    return taps[-1].extent if axis.coef(taps[-1].name) == apart else 1


def runs_of_call(nest: TrafficCounts) -> Count:
    """Runs of one call: neighbouring taps are one run where A is contiguous across them.

    All taps of swapped factors and of a stencil are one.
    """
    contraction = nest.contraction
    taps = [d for d in contraction.by_role("br") if contraction.x.uses(d.name)]
    depths = contraction.by_role("k")
    if not taps or contraction.swapped or nest.family.tiles[0].kernel.stencil:
        return np.ones(1)
    offset = contraction.x.offset(nest.context.strides[contraction.x.array])
    if not depths and not contraction.padded:
        return np.full(1, float(_split_runs(taps, offset)))
    channels = prod(d.extent for d in depths)
    joined = channels == 1 or any(
        offset.coef(taps[-1].name) == channels * offset.coef(d.name) for d in depths
    )
    inner = taps[-1].extent
    direct, packed = 1 if joined else inner, 1 if nest.family.pad == 0 else inner
    around = prod(d.extent for d in taps[:-1])
    return around * np.where(nest.packed, packed, direct).astype(np.float64)


def _split_runs(taps: Sequence[Dim], offset: Affine) -> int:
    """Runs of reductions without a depth: those whose steps go on evenly are one."""
    *outer, last = taps
    step = offset.coef(last.name) * last.extent
    while outer and offset.coef(outer[-1].name) == step:
        step *= outer.pop().extent
    return prod(d.extent for d in outer)
