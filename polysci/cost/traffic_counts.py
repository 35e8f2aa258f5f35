"""Footprints of a family at every loop depth: bytes of A, B and C, as arrays over schedules.

Inside the loops of the schedule are those of a call: filter taps, cache lines of the reduction,
steps of it. What does not fit a cache, or conflicts in a few of its sets, comes again each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from polysci.cost.estimate import Context
from polysci.numerics.arrays import LINE, PAGE
from polysci.numerics.dtypes import COMPUTES
from polysci.polyhedral.contraction import REDUCTIONS, Dim, Operand, columns_of
from polysci.polyhedral.footprint import (
    Count,
    Extents,
    LevelTraffic,
    crowding,
    extent_of,
    fetches,
    runs,
    steps_of,
    whole_blocks,
)
from polysci.polyhedral.footprint import traffic as level_traffic
from polysci.space.directives import Stream
from polysci.space.enumerate import Family, RegisterTile
from polysci.space.packed_copy import beside_in_copy

T = TypeVar("T")
# Bytes after which the sets of a cache repeat: 64 sets of L1, 2048 of L2, of one line each.
PERIODS = (64 * LINE, 2048 * LINE)


class TrafficCounts:
    """A family's loops; ``tiles[d]`` are the extents inside the outermost d of them.

    ``means[d]`` are the mean extents: the last tile of a dimension may be partial. Blocks are
    multiples of the steps inside them, so a dimension has ``ceil(extent / step)`` tiles in all;
    ``trips[d]`` is the mean trip count of loop d, ``loops[d]`` the largest.
    """

    def __init__(self, context: Context, family: Family) -> None:
        self.context, self.family = context, family
        self.contraction = context.contraction
        self.column = columns_of(self.contraction)
        kernel = family.tiles[0].kernel
        of_rows = kernel.family == "brgemm" and not self.contraction.swapped
        coefficient = context.machine.coefficient
        self._usable_ways = dict.fromkeys((*PERIODS, 0), coefficient("usable_ways"))
        if of_rows:
            self._usable_ways[PERIODS[0]] = coefficient("usable_ways_rows")
        self.lanes, self.compute = kernel.lanes, COMPUTES[kernel.compute]
        # Bytes of an element of a packed copy of A.
        x, wide = self.contraction.x, self.compute.bytes * self.contraction.a.block
        self.packed_copy = float(wide if kernel.family == "brgemm" else x.bytes)
        self.packed = family.pack >= 0
        self._memo: dict[tuple[object, ...], Any] = {}
        operands = (self.contraction.x, self.contraction.w, self.contraction.out)
        self._dims_of = {
            operand.array: tuple(d.name for d in self.contraction.dims if operand.uses(d.name))
            for operand in operands
        }
        problem = {d.name: np.full(1, float(d.extent)) for d in self.contraction.dims}
        self._pieces = {name: np.ones(1) for name in problem}
        self.tiles, self.means = [problem], [problem]
        self.trips, self.loops = list[Count](), list[Count]()
        self.dims = list(family.dims)
        for position, dim in enumerate(family.dims):
            self._enter(dim, family.steps[:, position].astype(np.float64))
        a = context.strides[self.contraction.a.array]
        self.beside = beside_in_copy(self.contraction, a, kernel)
        self.copied_beside = np.ones(len(family))  # of its positions in a packed copy
        if beside := self.beside:
            sizes = [np.broadcast_to(tile[beside.name], len(family)) for tile in self.tiles]
            self.copied_beside = np.choose(np.maximum(family.pack, 0), sizes)
        self.depth = len(self.dims)  # of a call
        for dim, step in self._inner():
            self.dims.append(dim)
            self._enter(dim, np.full(1, step))
        self._fetches = [
            fetches([dim in self._dims_of[operand.array] for dim in self.dims], self.trips)
            for operand in operands
        ]

    def _enter(self, dim: str, step: Count) -> None:
        extent = float(self.contraction.extent(dim))
        size = np.minimum(step, self.tiles[-1][dim])
        pieces = np.ceil(extent / size)
        self.trips.append(pieces / self._pieces[dim])
        self.loops.append(np.ceil(self.tiles[-1][dim] / size))
        self._pieces[dim] = pieces
        mean = extent / pieces
        self.tiles.append({**self.tiles[-1], dim: size})
        self.means.append({**self.means[-1], dim: size if (mean == size).all() else mean})

    def _inner(self) -> list[tuple[str, float]]:
        """Loops inside a call with their steps; with swapped factors a step has all its taps."""
        taps = [(d.name, 1.0) for d in self.contraction.by_role("br") if d.extent > 1]
        names = [d.name for d in self.contraction.by_role("k") if d.extent > 1]
        depth = [(name, step) for name in names for step in (LINE / self.contraction.x.bytes, 1.0)]
        return depth + taps if self.contraction.swapped else taps + depth

    def dim(self, name: str) -> Dim:
        return next(d for d in self.contraction.dims if d.name == name)

    def by_tile(self, cost: Callable[[RegisterTile], float]) -> Count:
        """A property of register tiles, for every schedule of the family."""
        return np.array([cost(tile) for tile in self.family.tiles])[self.family.which]

    def calls(self) -> Count:
        """Return how often the microkernel is entered."""
        return prod(self.trips[: self.depth], start=np.ones(1))

    def pixel_lines(self) -> Count:
        """Lines that ``ahead(B)`` prefetches with swapped factors, the last loop over rows.

        Each step of the first calls asks for one line of the next pixels.
        """
        call, rows = self.tiles[self.depth], self.trips[self.depth - 1]
        lines = call[self.column.name] * self.contraction.x.bytes // LINE + 1
        steps = prod(call[dim.name] for dim in self.contraction.by_role("k"))
        asked: Count = self.calls() / rows * np.minimum(lines, rows) * steps
        return asked

    def total_bytes(self) -> float:
        """Bytes of the whole problem, read and written."""
        _, b, c = self._bytes(0, self.tiles[0])
        return float((self.lines(self.contraction.x, self.tiles[0]) + b + c)[0])

    def splits(self) -> Count:
        """The number of calls that one element's reduction is split into."""
        cuts = [
            trip
            for dim, trip in zip(self.family.dims, self.trips, strict=False)
            if self.dim(dim).role in REDUCTIONS
        ]
        return prod(cuts, start=np.ones(1)) / self.copies()

    def copies(self) -> Count:
        """Private copies of C; 1 where it is written as it is summed."""
        inside, trips = self._shared_loops()
        turns = [
            np.where(on, trip, 1.0)
            for dim, on, trip in zip(self.family.dims, inside, trips, strict=False)
            if dim in self.family.reductions
        ]
        return prod(turns, start=np.ones(len(self.family)))

    def levels(self) -> tuple[LevelTraffic, LevelTraffic, LevelTraffic]:
        """Traffic into L1, L2 and the last level, in bytes."""
        target, threads = self.context.target, self.context.threads
        sizes = [target.share(cache.name, threads) for cache in target.levels]
        depths, levels = range(len(self.tiles)), []
        moved = [self.bytes_moved(depth) for depth in depths]
        for size, period in zip(sizes, (*PERIODS, 0), strict=True):
            occupied = [self.occupancy(depth, period) for depth in depths]
            levels.append(level_traffic(occupied, moved, self.context.usable(size)))
        return levels[0], levels[1], levels[2]

    def pages(self) -> Count:
        """Misses of the first-level translation buffer."""
        pages, moved = list[Count](), list[tuple[Count, Count, Count]]()
        for depth, tile in enumerate(self.means):
            a, b, c = self._pages(depth, tile)
            times = self.times(depth)
            pages.append(a + b + c)
            moved.append((a * times[0], b * times[1], c * times[2]))
        return level_traffic(pages, moved, self.context.machine.coefficient("translations")).total

    def seeks(self, l2: LevelTraffic) -> Count:
        """Runs of x's lines in the traffic into L2: no prefetcher has seen where one begins."""
        depths = range(len(self.tiles))
        occupied = [self.occupancy(depth, PERIODS[1]) for depth in depths]
        begun = [(self._runs_of_x(depth), np.zeros(1), np.zeros(1)) for depth in depths]
        runs = (
            level_traffic(occupied, begun, self.context.usable(self.context.l2)).a
            + self._cut_rows()
        )
        return runs + self.context.machine.coefficient("stray_seek") * self._strays() * l2.a / LINE

    def _strays(self) -> NDArray[np.bool_]:
        """Return whether the call after each one reads other lines of x than the next ones."""
        x, undecided = self.contraction.x, np.ones(len(self.family), dtype=bool)
        offset, stray = x.offset(self.context.strides[x.array]), ~undecided
        tile = self.tiles[self.depth]
        along = [d for d in self._dims_of[x.array] if offset.coef(d) == 1]
        cut = np.zeros(len(self.family), dtype=bool)
        for dim in along:
            cut = cut | (tile[dim] < self.dim(dim).extent)
        for position in reversed(range(self.depth)):
            dim = self.dims[position]
            if x.uses(dim):
                runs = undecided & (self.trips[position] > 1)
                if dim not in along:
                    stray = stray | (runs & cut)
                undecided = undecided & ~runs
        return stray & ~self.packed

    def _cut_rows(self) -> Count:
        """Rows of x that a stencil's calls read part by part: the next part is no run's next line.

        Whole rows of an image follow each other. Measured: 5 ns a row on an Intel core, whether it
        is cut into 2 parts or 7.
        """
        if not self.family.tiles[0].kernel.stencil:
            return np.zeros(1)
        x = self.contraction.x
        cut = self.tiles[self.depth][self.column.name] < self.column.extent
        return np.where(cut, float(prod(x.shape[:-1])), 0.0)

    def _runs_of_x(self, depth: int) -> Count:
        """Runs of lines that all visits of the sub-nest at a depth begin in x, or in its copy."""
        number = self.runs_of(self.contraction.x, self.means[depth], LINE)[1]
        return np.where(self.from_copy(depth), 1.0, number) * self.times(depth)[0]

    def _pages(self, depth: int, tile: Extents) -> tuple[Count, Count, Count]:
        contraction = self.contraction
        a, c = (
            self._blocks(operand, tile, PAGE) / PAGE for operand in (contraction.x, contraction.out)
        )
        if self.packed.any():
            copy = self._memoise("copy", contraction.x, tile, self._packed_bytes)
            pages = np.ceil(copy / PAGE)
            if contraction.swapped:  # channels lie as far apart as in x, or as the copy is small
                pages = np.minimum(a, np.ceil(self.whole_copy() / PAGE))
            a = np.where(self.from_copy(depth), pages, a)
        b = np.ceil(self._memoise("panel", contraction.w, tile, self.panel_bytes) / PAGE)
        return a, b, c

    def times(self, depth: int) -> tuple[Count, Count, Count]:
        """Return how often A, B and C of the sub-nest at a depth are fetched."""
        outer = min(depth, self.depth)  # accumulators stay in registers during a call
        a, b, c = self._fetches
        return a[depth], b[depth], c[outer]

    def bytes_moved(self, depth: int) -> tuple[Count, Count, Count]:
        """Bytes of A, B and C that all visits of the sub-nest at a depth touch."""
        outer = min(depth, self.depth)
        stored = np.where(self.family.has(Stream), 1.0, 2.0)  # a line is read before it is written
        a, b, _ = self._bytes(depth, self.means[depth])
        c = self._bytes(outer, self.means[outer])[2]
        times = self.times(depth)
        return a * times[0], b * times[1], stored * c * times[2]

    def occupancy(self, depth: int, period: int) -> Count:
        """Bytes of cache that the sub-nest occupies.

        An operand that conflicts in few sets counts as if all sets were as full as those.
        """
        a, b, c = self._bytes(depth, self.tiles[depth])
        total = a + b
        full = a * np.where(
            self.from_copy(depth), 1.0, self.crowding_of(self.contraction.x, depth, period)
        )
        if depth <= self.depth:
            total = total + c
            full = np.maximum(full, c * self.crowding_of(self.contraction.out, depth, period))
        return np.maximum(total, full * self.context.usable(1.0) / self._usable_ways[period])

    def from_copy(self, depth: int) -> NDArray[np.bool_]:
        inside: NDArray[np.bool_] = self.packed & (self.family.pack <= depth)
        return inside

    def _bytes(self, depth: int, tile: Extents) -> tuple[Count, Count, Count]:
        """Bytes of A, B and C that a tile at a depth touches, in whole cache lines."""
        a = self.lines(self.contraction.x, tile)
        if self.packed.any():
            copy = self._memoise("copy", self.contraction.x, tile, self._packed_bytes)
            a = np.where(self.from_copy(depth), copy, a)
        b = self._memoise("panel", self.contraction.w, tile, self.panel_bytes)
        return a, b, self.lines(self.contraction.out, tile)

    def line_parts(self, whole: Count, part: Count) -> Count:
        """Bytes of lines over bytes used, reading ``part`` of ``whole`` elements side by side."""
        return np.maximum(1.0, np.minimum(whole, part + LINE / self.packed_copy - 1) / part)

    def copy_bytes(self, depth: int) -> Count:
        """Bytes of a copy of the A that a tile at a depth reads."""
        return self._memoise("copy", self.contraction.x, self.tiles[depth], self._packed_bytes)

    def whole_copy(self) -> Count:
        """Bytes of the copy of A that each schedule makes at a time."""
        total = np.zeros(len(self.family))
        for depth in range(int(self.family.pack.max()) + 1):
            total = np.where(self.family.pack == depth, self.copy_bytes(depth), total)
        return total

    def _packed_bytes(self, tile: Extents) -> Count:
        """Bytes of a packed copy of A."""
        return prod(self._extents(self.contraction.x, tile), start=np.full(1, self.packed_copy))

    def panels(self, depth: int = 0) -> float:
        """Bytes of packed B inside so many loops of the first schedule, by default of all."""
        return float(self.panel_bytes(self.tiles[depth])[0])

    def panel_bytes(self, tile: Extents) -> Count:
        """Bytes of packed B that a tile reads: whole vectors of columns."""
        total = np.full(1, float(self.contraction.packed_item(self.compute)))
        for name in self._dims_of[self.contraction.w.array]:
            if name == self.column.name:
                total = total * np.ceil(tile[name] / self.lanes) * self.lanes
            else:
                total = total * tile[name]
        return total

    def lines(self, operand: Operand, tile: Extents) -> Count:
        """Bytes of an operand that a tile touches, in whole cache lines."""
        return self._blocks(operand, tile, LINE)

    def _blocks(self, operand: Operand, tile: Extents, block: int) -> Count:
        return self._memoise(
            f"blocks of {block}", operand, tile,
            lambda tile: whole_blocks(*self.runs_of(operand, tile, block), block),
        )  # fmt: skip

    def crowding_of(self, operand: Operand, depth: int, period: int) -> Count:
        if not period:
            return np.ones(1)
        strides = self.context.strides[operand.array]
        return self._memoise(
            f"crowding {period}", operand, self.tiles[depth],
            lambda tile: crowding(
                *self.runs_of(operand, tile, LINE), steps_of(operand, strides, tile),
                self._extents(operand, tile), period, operand.bytes,
            ),
        )  # fmt: skip

    def runs_of(self, operand: Operand, tile: Extents, block: int) -> tuple[Count, Count]:
        strides = self.context.strides[operand.array]
        return self._memoise(
            f"runs {block}", operand, tile,
            lambda tile: runs(strides, self._extents(operand, tile), block, operand.bytes),
        )  # fmt: skip

    def _extents(self, operand: Operand, tile: Extents) -> list[Count]:
        """Positions along every axis of an operand that a tile touches."""
        extents = []
        for axis, index in enumerate(operand.index):
            key = (operand.array, axis, *(id(tile[name]) for name, _ in index.terms))
            if key not in self._memo:
                self._memo[key] = extent_of(operand, axis, tile)
            extents.append(self._memo[key])
        return extents

    def _memoise(
        self,
        kind: str,
        operand: Operand,
        tile: Extents,
        count: Callable[[Mapping[str, Count]], T],
    ) -> T:
        """A count of an operand's tile, computed once for all depths that share the extents."""
        key = (kind, operand.array, *(id(tile[name]) for name in self._dims_of[operand.array]))
        if key not in self._memo:
            self._memo[key] = count(tile)
        result: T = self._memo[key]
        return result

    def tasks(self) -> Count:
        """Iterations that the threads share; 1 where there are no parallel loops."""
        return prod(self._shared_loops()[1], start=np.ones(len(self.family)))

    def task_ends(self) -> list[Count]:
        """Return how many tasks come before those of each thread, and last how many there are.

        Threads take runs of tasks, all as many, or the first ones one more; some may have none.
        """
        threads = self.context.threads
        fewest, more = np.divmod(self.tasks(), threads)
        busy = int(min(threads, self.tasks().max()))
        return [at * fewest + np.minimum(at, more) for at in range(busy + 1)]

    def imbalance(self) -> Count:
        """The busiest thread's share of the work, over the mean.

        Tasks at the end of a loop are smaller where that cuts its last tile.
        """
        threads, tasks = self.context.threads, self.tasks()
        shares, below, left = list[Count](), list[Count](), tasks
        for position, (on, trip) in enumerate(zip(*self._shared_loops(), strict=True)):
            step, extent = (
                self.family.steps[:, position],
                self.contraction.extent(self.dims[position]),
            )
            shares.append(np.where(on, np.minimum(step / extent, 1.0), 1.0))
            left = left / trip
            below.append(left)
        done = [_work_before(end, shares, below) for end in self.task_ends()]
        busiest = reduce(np.maximum, (end - first for first, end in pairwise(done)))
        return np.where(tasks > 1, busiest * threads, 1.0)

    def _shared_loops(self) -> tuple[list[NDArray[np.bool_]], list[Count]]:
        """Return for each leading loop which schedules run it in parallel, and its trips there."""
        count = int(self.family.parallel.max()) if self.context.threads > 1 else 0
        inside = [position < self.family.parallel for position in range(count)]
        return inside, [np.where(on, n, 1.0) for on, n in zip(inside, self.loops, strict=False)]


def _work_before(tasks: Count, shares: Sequence[Count], below: Sequence[Count]) -> Count:
    """Return the share of all work in the first tasks of nested loops, the outermost first.

    ``shares``, by loop: the share of its work in a whole tile; ``below``: tasks of one tile.
    """
    done, tile, rest = np.zeros(len(tasks)), np.ones(len(tasks)), tasks
    for share, inner in zip(shares, below, strict=True):
        whole = np.floor(rest / inner)
        rest = rest - whole * inner
        done = done + tile * np.minimum(whole * share, 1.0)
        tile = tile * np.clip(1.0 - whole * share, 0.0, share)
    return done
