"""Rules of thumb that a library hard-codes: a schedule's cost is the rules that it breaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from polysci.cost.estimate import Context
from polysci.numerics.arrays import LINE
from polysci.polyhedral.contraction import columns_of
from polysci.polyhedral.footprint import Count, footprint
from polysci.space.directives import Stream
from polysci.space.enumerate import Family, RegisterTile, register_tiles, row_dims
from polysci.target.microkernels import family as kernels_of
from polysci_rankers.trip_counts import Flags, trip_counts

HALF = 0.5  # of L2: may stay there while other data streams through
WAYS = 8  # of an L1 set
SETS = 64  # of an L1 cache of 4 KiB a way
UNEVEN = 1.125  # the busiest thread's work over the mean
LOAD = 0.15  # FMA slots that a load costs, including the occasional wait for L2
ENOUGH = 0.97  # of the best tile's use: counts as equally good

TILE, LOOP = 0.1, 0.001  # weights of the tile's waste and of a loop: less than any rule

# What breaking a rule costs, by the rule's number in ``rules``.
WEIGHTS = (8.0, 4.0, 2.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 0.5, 1.0)


def rules(context: Context, family: Family) -> Count:
    """Weighted count of the rules that every schedule breaks; ties by the use of the register tile,
    then by fewer loops.

    0. The register tile wastes as few lanes and FMA slots as any: whole vectors, rows split
       evenly, enough accumulators.
    1. The whole reduction is in one call if the panel of B fits half of L2; else in parts that do.
    2. The outermost loop runs over columns (weights) where B is larger than A, else over pixels.
    3. Of the register-tile loops, the columns are outermost or innermost, never between pixels.
    4. What the outermost register-tile loop sweeps fits in L2, else there are cache blocks.
    5. No cache blocks where everything fits without them: a cost for each needless loop.
    6. Packing is not repeated inside a loop over columns.
    7. Pack A only where its rows fall into few sets of L1, where a 1x1 filter strides over it, or
       where the kernel cannot read it unpacked.
    8. At least as many tasks as threads, divided evenly.
    9. Threads share pixels before columns, unless columns are outermost by rule 2.
    10. No more parallel loops than are needed for enough tasks.
    11. Store past the caches only what half of the last cache cannot hold.
    """
    checks = _Checks(context, family)
    broken = (
        checks.wastes_tile(), checks.splits_reduction(), checks.starts_with_wrong_dim(),
        checks.separates_columns(), checks.lacks_blocks(), checks.count_needless_blocks(),
        checks.repeats_packing(), checks.packs_wrongly(), checks.lacks_tasks(),
        checks.shares_columns(), checks.count_needless_parallel(), checks.streams_wrongly(),
    )  # fmt: skip
    cost = np.zeros(len(family))
    for weight, part in zip(WEIGHTS, broken, strict=True):
        cost = cost + weight * part.astype(np.float64)
    loops = sum((checks.nest.running(at) for at in range(len(family.dims))), np.zeros(1))
    return cost + TILE * (1 - checks.use) + LOOP * loops


def use_of(context: Context, tile: RegisterTile) -> float:
    """Share of the FMA slots that a register tile fills with work, tails included.

    A call issues one FMA a row and vector of columns. Two FMA units with a latency of four cycles
    need eight accumulators; an element of each row and every vector of columns has to be loaded.
    """
    contraction, lanes = context.contraction, tile.kernel.lanes
    column = columns_of(contraction).name
    useful = issued = 1.0
    for dim, size in tile.sizes:
        extent = contraction.extent(dim)
        lanes_used = -(-size // lanes) * lanes if dim == column else size
        useful *= extent
        issued *= extent // size * lanes_used + (
            -(-(extent % size) // lanes) * lanes if dim == column else extent % size
        )
    vectors = -(-dict(tile.sizes)[column] // lanes)
    fmas = tile.rows * vectors
    return useful / issued * min(1.0, fmas / 8) * fmas / (fmas + LOAD * (tile.rows + vectors))


class _Checks:
    """Which schedules of a family break which rule: arrays of 0 and 1, or of counts."""

    def __init__(self, context: Context, family: Family) -> None:
        self.context, self.family, self.nest = context, family, trip_counts(family)
        self.contraction = contraction = context.contraction
        self.column = columns_of(contraction).name
        self.depths = {d.name for d in contraction.by_role("k")}
        self.pixels = {d.name for d in contraction.by_role("m")}
        self.swept = {self.column, *(d.name for d in row_dims(contraction, context.strides)[-2:])}
        self.none = np.zeros(len(family), dtype=bool)
        self.use = np.array([use_of(context, tile) for tile in family.tiles])[family.which]
        problem = self.nest.tiles[0]
        self.columns_out = bool(
            footprint(contraction.b, problem)[0] > footprint(contraction.a, problem)[0]
        )
        self.half = HALF * context.target.second_level.size

    def _running(self, position: int) -> Flags:
        return self.none | self.nest.running(position)

    def _point(self, position: int) -> Flags:
        """The schedules in which this is a loop over register tiles."""
        swept = self.nest.dims[position] in self.swept
        return self.none | self.nest.innermost(position) if swept else self.none

    def _by_tile(self, property_of: Callable[[RegisterTile], float]) -> Count:
        return np.array([property_of(tile) for tile in self.family.tiles])[self.family.which]

    def wastes_tile(self) -> Flags:
        own = self.family.tiles[0].kernel
        kernels = kernels_of(own.family, own.isa, own.compute)
        best = register_tiles(self.context.contraction, self.context.strides, kernels, 1)
        best_use = max((use_of(self.context, tile) for tile in best), default=0.0)
        poor: Flags = self.use < ENOUGH * best_use
        return poor

    def splits_reduction(self) -> Flags:
        split, inside = self.none, self.nest.tiles[-1]
        for position, dim in enumerate(self.nest.dims):
            if dim in self.depths:
                split = split | self.nest.running(position)
        reduced = [d for d in self.contraction.dims if d.role in ("k", "br")]
        width = inside[self.column] * self.contraction.b.bytes
        reduction_fits = width * prod(d.extent for d in reduced) <= self.half
        part_fits = width * prod((inside[d.name] for d in reduced), start=np.ones(1)) <= self.half
        return (reduction_fits & split) | (~reduction_fits & ~(split & part_fits))

    def starts_with_wrong_dim(self) -> Flags:
        passed, wrong = self.none, self.none
        for position, dim in enumerate(self.nest.dims):
            if dim == self.column or dim in self.pixels:
                first = self._running(position) & ~passed
                wrong = wrong | (first & ((dim == self.column) != self.columns_out))
                passed = passed | first
        return wrong

    def separates_columns(self) -> Flags:
        before, entered, after = self.none, self.none, self.none
        for position, dim in enumerate(self.nest.dims):
            point = self._point(position)
            if dim == self.column:
                entered = entered | (point & before)
            else:
                before, after = before | point, after | (point & entered)
        return after

    def lacks_blocks(self) -> Flags:
        swept, passed = np.zeros(len(self.none)), self.none
        for position in range(len(self.nest.dims)):
            first = self._point(position) & ~passed
            swept = np.where(first, self._bytes(self.nest.tiles[position + 1]), swept)
            passed = passed | first
        over: Flags = swept > self.context.target.second_level.size
        return over

    def count_needless_blocks(self) -> Count:
        """Blocks of pixels or columns where the outermost register-tile loop suffices."""
        passed, fits, blocks = self.none, self.none, np.zeros(len(self.none))
        problem, inside = self.nest.tiles[0], self.nest.tiles[-1]
        sweep = {name: inside[name] if name in self.depths else problem[name] for name in problem}
        for position, dim in enumerate(self.nest.dims):
            point = self._point(position)
            swept = self._bytes(sweep | {dim: inside[dim]}) <= self.context.target.second_level.size
            fits = fits | (point & ~passed & swept)
            passed = passed | point
            if dim in self.swept:
                blocks = blocks + (self._running(position) & ~point)
        return blocks * fits

    def _bytes(self, tile: Mapping[str, Count]) -> Count:
        operands = (self.contraction.a, self.contraction.b, self.contraction.out)
        return sum((footprint(op, tile) * op.bytes for op in operands), np.zeros(1))

    def repeats_packing(self) -> Flags:
        again = self.none
        for position, dim in enumerate(self.nest.dims):
            if dim == self.column:
                again = again | (self._running(position) & (self.family.pack > position))
        return again

    def packs_wrongly(self) -> Flags:
        a = self.contraction.a
        stride = a.offset(self.context.strides[a.array]).coef(self.column)
        taps = prod(d.extent for d in self.contraction.by_role("br"))
        strided = any(axis.coef(name) > 1 for axis in a.index for name in sorted(self.pixels))
        should_pack = self._by_tile(self._crowds) > 0
        if stride not in (0, 1) or (taps == 1 and strided):
            should_pack = ~self.none
        broken: Flags = (self.family.pack >= 0) != should_pack
        return broken

    def _crowds(self, tile: RegisterTile) -> float:
        """Whether the rows of a tile need more ways of an L1 set than there are."""
        offset = self.contraction.a.offset(self.context.strides[self.contraction.a.array])
        item = self.contraction.a.bytes
        rows = [(offset.coef(n) * item, count) for n, count in tile.sizes if n != self.column]
        places = [
            sum(step * at for (step, _), at in zip(rows, where, strict=True))
            for where in product(*(range(count) for _, count in rows))
        ]
        sets = Counter(line % SETS for line in dict.fromkeys(at // LINE for at in places))
        return float(max(sets.values()) >= WAYS)

    def lacks_tasks(self) -> Flags:
        return ~self._enough(self.family.parallel)

    def _enough(self, parallel: NDArray[np.intp]) -> Flags:
        threads = self.context.threads
        even: Flags = self.nest.busiest(parallel, threads) * threads <= UNEVEN
        return even

    def shares_columns(self) -> Flags:
        if self.context.threads == 1 or self.columns_out:
            return self.none
        passed, columns = self.none, self.none
        for position, dim in enumerate(self.nest.dims):
            first = self._running(position) & (position < self.family.parallel) & ~passed
            columns = columns | first if dim == self.column else columns
            passed = passed | first
        return columns

    def count_needless_parallel(self) -> Count:
        more = np.zeros(len(self.none))
        for position in range(1, len(self.nest.dims)):
            on = self._running(position) & (position < self.family.parallel)
            before = np.minimum(self.family.parallel, position)
            more = more + (on & self._enough(before))
        return more

    def streams_wrongly(self) -> Flags:
        out = self.contraction.out
        large = out.bytes * prod(out.shape) > self.context.streamed
        broken: Flags = self.family.has(Stream) != large
        return broken
