"""The default ranker: register-tile compute, traffic over all cache levels, packing, balance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from polysci.contraction import Contraction, Dim, columns_of
from polysci.errors import UnsupportedError
from polysci.footprint import FLOAT, LINE, Count, Level, footprint, line_bytes, refetches
from polysci.footprint import traffic as level_traffic
from polysci.plan import cut_axes, masks_of
from polysci.rank.estimate import Context, Estimate
from polysci.space import Family, RegisterTile

USABLE = 0.8  # of a cache: the rest holds what the model does not count
WAYS = 8  # of an L1 set
STORE_NS = 0.35  # of a vector of C on its way out of the registers
PAGE = 4096  # bytes after which L1 sets repeat: 64 sets of one line
EXPOSED = (0.02, 0.05, 0.3)  # share of a transfer from L2, L3, memory that compute does not hide


def traffic(context: Context, family: Family) -> Estimate:
    """Seconds = balanced (compute + calls + exposed transfers) + packing + starting threads."""
    nest = _Nest(context, family)
    compute, calls = nest.compute(), nest.calls()
    levels = nest.levels()
    machine = context.machine
    rates = (machine.l2, machine.l3, machine.memory)
    transfer = sum(
        (
            share * level.total / (rate * 1e9)
            for share, level, rate in zip(EXPOSED, levels, rates, strict=True)
        ),
        np.zeros(1),
    )
    work = np.maximum(compute, nest.conflicts()) + calls + transfer
    packing, imbalance = nest.packing(), nest.imbalance()
    regions = 1 + (family.pack == 0)
    shared = nest.tasks() > 1  # one task is a serial program: its loops run once
    started = machine.fork_us * 1e-6 * regions * shared
    threads = np.where(shared, context.threads, 1)
    seconds = (work + packing) / threads * imbalance + started
    size = len(family)

    def each(part: Count) -> Count:
        return np.array(np.broadcast_to(part, size))

    return Estimate(
        seconds=each(seconds),
        compute=each(compute),
        calls=each(calls),
        packing=each(packing),
        transfer=each(transfer),
        imbalance=each(imbalance),
        levels=levels,
    )


class _Nest:
    """A family's loops: extents inside every depth and trip counts, as arrays over schedules."""

    def __init__(self, context: Context, family: Family) -> None:
        self.context, self.family = context, family
        self.contraction = context.contraction
        self.column = columns_of(self.contraction)
        self.lanes = family.tiles[0].kernel.lanes
        self.packed = family.pack >= 0
        current = {d.name: np.full(1, float(d.extent)) for d in self.contraction.dims}
        self.tiles, self.trips = [dict(current)], list[Count]()
        for position, dim in enumerate(family.dims):
            step = family.steps[:, position].astype(np.float64)
            self.trips.append(np.ceil(current[dim] / step))
            current[dim] = np.minimum(step, current[dim])
            self.tiles.append(dict(current))

    def _dim(self, name: str) -> Dim:
        return next(d for d in self.contraction.dims if d.name == name)

    def _by_tile(self, cost: Callable[[RegisterTile], float]) -> Count:
        """A property of register tiles, for every schedule of the family."""
        return np.array([cost(tile) for tile in self.family.tiles])[self.family.which]

    def compute(self) -> Count:
        """Seconds of FMA work: every register tile at its kernel's measured rate, tails included.

        Taps that lie in the padding are skipped, unless packing filled it with zeros.
        """
        skipped = np.where(self.packed, 1.0, valid_share(self.contraction))
        return self._by_tile(self._tile_seconds) * skipped

    def _tile_seconds(self, tile: RegisterTile) -> float:
        kernel, machine, sizes = tile.kernel, self.context.machine, dict(tile.sizes)
        around = prod(
            d.extent
            for d in self.contraction.dims
            if d.role in ("k", "br", "m", "batch") and d.name not in sizes
        )
        total = 0.0
        parts = [
            self._parts(name, size) for name, size in sizes.items() if name != self.column.name
        ]
        for count, rows in _combine(parts):
            for columns, width in self._parts(self.column.name, sizes[self.column.name]):
                vecs = -(-width // self.lanes)
                name = f"{kernel.family}_{kernel.isa}_{kernel.dtype}_{rows}x{vecs * self.lanes}"
                rate = machine.peak * machine.of_kernel(name, rows, vecs)
                total += count * columns * rows * vecs * self.lanes * 2.0 / (rate * 1e9)
        return total * around

    def _parts(self, name: str, size: int) -> list[tuple[int, int]]:
        """How many tiles of which size cut a dimension."""
        whole, rest = divmod(self._dim(name).extent, size)
        return [(whole, size)] + ([(1, rest)] if rest else [])

    def calls(self) -> Count:
        """Seconds of entering register tiles, starting their runs and moving C."""
        machine = self.context.machine
        number = prod(self.trips, start=np.ones(1))
        runs = self._runs()
        split = np.ones(1)
        for dim, trip in zip(self.family.dims, self.trips, strict=True):
            if self._dim(dim).role == "k":
                split = split * trip
        split = np.where(split > 1, 2.0, 1.0)  # C is read back as well
        move = self._by_tile(self._moved) * STORE_NS * 1e-9 * split
        return number * (machine.call_ns * 1e-9 + runs * machine.run_ns * 1e-9 + move)

    def _runs(self) -> Count:
        """Runs of one call: neighbouring taps join where A is contiguous across them."""
        taps, depths = self.contraction.by_role("br"), self.contraction.by_role("k")
        if not taps:
            return np.ones(1)
        offset = self.contraction.a.offset(self.context.strides[self.contraction.a.array])
        channels = prod(d.extent for d in depths)
        joined = channels == 1 or any(
            offset.coef(taps[-1].name) == channels * offset.coef(d.name) for d in depths
        )
        inner = taps[-1].extent
        direct, packed = 1 if joined else inner, 1 if self.family.pad == 0 else inner
        around = prod(d.extent for d in taps[:-1])
        return around * np.where(self.packed, packed, direct).astype(np.float64)

    def _moved(self, tile: RegisterTile) -> float:
        """Vectors of C that one call stores; a transposed tile costs as its whole blocks."""
        if not self._scattered():
            return tile.rows * tile.kernel.vecs
        return 2.5 * -(-tile.rows // self.lanes) * self.lanes * tile.kernel.vecs

    def _scattered(self) -> bool:
        out = self.contraction.out
        return out.offset(self.context.strides[out.array]).coef(self.column.name) != 1

    def levels(self) -> tuple[Level, Level, Level]:
        """Traffic into L1, L2 and the last level."""
        working, moved = [], []
        stored = np.where(self.family.stream, 1.0, 2.0)  # a line is read before it is written
        for depth, tile in enumerate(self.tiles):
            a, b, c = self._bytes(tile, depth)
            working.append(a + b + c)
            times = [
                refetches(operand, self.family.dims, self.trips, depth)
                for operand in (self.contraction.a, self.contraction.b, self.contraction.out)
            ]
            moved.append((a * times[0], b * times[1], stored * c * times[2]))
        target = self.context.target
        shared = target.l3 / max(1, self.context.threads)
        sizes = (target.l1, target.l2, shared)
        levels = [level_traffic(working, moved, USABLE * size) for size in sizes]
        return levels[0], levels[1], levels[2]

    def _bytes(self, tile: dict[str, Count], depth: int) -> tuple[Count, Count, Count]:
        """Bytes of A, B and C inside a depth, in whole cache lines."""
        contraction, strides = self.contraction, self.context.strides
        a = np.where(
            self.packed & (self.family.pack <= depth),
            footprint(contraction.a, tile) * FLOAT,
            line_bytes(contraction.a, strides[contraction.a.array], tile),
        )
        padded = dict(tile)
        padded[self.column.name] = np.ceil(tile[self.column.name] / self.lanes) * self.lanes
        b = np.ones(1) * FLOAT
        for dim in contraction.dims:
            if contraction.b.uses(dim.name):
                b = b * padded[dim.name]
        c = line_bytes(contraction.out, strides[contraction.out.array], tile)
        return a, b, c

    def conflicts(self) -> Count:
        """Seconds the rows of A take when they crowd into too few L1 sets, else 0.

        Rows whose distance is a multiple of many lines share few sets; beyond the ways of a set
        every broadcast fetches a line from L2.
        """
        if self.contraction.a.uses(self.column.name):
            return np.zeros(1)
        return np.where(self.packed, 0.0, self._by_tile(self._crowded_seconds))

    def _crowded_seconds(self, tile: RegisterTile) -> float:
        a = self.contraction.a
        offset = a.offset(self.context.strides[a.array])
        places = [0]
        for name, count in tile.sizes:
            if name != self.column.name:
                step = offset.coef(name) * FLOAT
                places = [at + i * step for at in places for i in range(count)]
        sets = Counter(line % (PAGE // LINE) for line in {place // LINE for place in places})
        crowded = sum(lines for lines in sets.values() if lines > WAYS - 1)
        macs = prod(d.extent for d in self.contraction.dims)
        steps = macs / (len(places) * tile.kernel.vecs * self.lanes)
        return steps * crowded * LINE * 1.5 / (self.context.machine.l2 * 1e9)

    def packing(self) -> Count:
        """Seconds of copying A, as often as the loops around the packing run."""
        copied = np.zeros(len(self.family))
        times = np.ones(1)
        for depth in range(int(self.family.pack.max()) + 1):
            size = footprint(self.contraction.a, self.tiles[depth]) * times
            copied = np.where(self.family.pack == depth, size, copied)
            times = times * self.trips[depth]
        a = self.contraction.a
        depths = [d.name for d in self.contraction.by_role("k")]
        offset = a.offset(self.context.strides[a.array])
        contiguous = any(offset.coef(name) == 1 for name in [*depths, self.column.name])
        rate = self.context.machine.copy * 1e9 * (1.0 if contiguous else 0.2)
        return copied * 2 * FLOAT / rate

    def imbalance(self) -> Count:
        """The busiest thread's share of the work, over the mean.

        Threads take equal runs of tasks; the first gets whole tiles where the last ones are cut.
        """
        family, threads, tasks = self.family, self.context.threads, self.tasks()
        inside, trips = self._shared_loops()
        share = np.ceil(tasks / threads)  # of the first thread, in tasks
        uneven, spanned, below = np.ones(len(family)), np.zeros(len(family), dtype=bool), tasks
        for position, (on, trip) in enumerate(zip(inside, trips, strict=True)):
            dim = family.dims[position]
            whole = trip * family.steps[:, position] / self.tiles[position][dim]
            uneven = np.where(on & ~spanned, uneven * np.maximum(whole, 1.0), uneven)
            below = below / trip
            spanned = spanned | (share >= below)
        return np.where(tasks > 1, share * threads / tasks * uneven, 1.0)

    def tasks(self) -> Count:
        """Iterations that the threads share; 1 where there are no parallel loops."""
        return prod(self._shared_loops()[1], start=np.ones(len(self.family)))

    def _shared_loops(self) -> tuple[list[NDArray[np.bool_]], list[Count]]:
        """For each leading loop: which schedules run it in parallel, and its trips there."""
        most = int(self.family.parallel.max()) if self.context.threads > 1 else 0
        inside = [position < self.family.parallel for position in range(most)]
        return inside, [np.where(on, t, 1.0) for on, t in zip(inside, self.trips, strict=False)]


@lru_cache(maxsize=64)
def valid_share(contraction: Contraction) -> float:
    """Share of the multiplications that read inside the image."""
    share, extents = 1.0, {d.name: d for d in contraction.dims}
    try:
        cut = cut_axes(contraction)
    except UnsupportedError:
        return 1.0
    for name, (axis, tap) in cut.items():
        masks = masks_of(contraction, extents[name], extents[name].extent, axis, tap)[0]
        share *= sum(mask.bit_count() for mask in masks) / (extents[name].extent * len(masks))
    return share


def _combine(parts: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Products of (count, size) over several dimensions."""
    found = [(1, 1)]
    for part in parts:
        found = [(n * count, rows * size) for n, rows in found for count, size in part]
    return found
