"""The bottleneck model: bytes into the registers and every cache, over what each can deliver.

After R. Li, Y. Xu, A. Sukumaran-Rajam, A. Rountev, P. Sadayappan, "Analytical characterization and
design space exploration for optimization of CNNs", ASPLOS 2021: a level that holds a tile receives
the tile's footprint once for every iteration of the innermost loop outside that indexes the
operand, and of all loops around that one; the slowest level decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from polysci.cost.estimate import Context
from polysci.polyhedral.contraction import Operand, columns_of
from polysci.polyhedral.footprint import FLOAT, Count, footprint, line_bytes, refetches, traffic
from polysci.space.directives import Stream
from polysci.space.enumerate import Family
from polysci_rankers.trip_counts import TripCounts, trip_counts

USABLE = 0.8  # of a cache: the rest holds what the model does not count
LOADED = 2.0  # bytes into registers a flop at the peak: two vector loads feed two FMAs
OTHERS = 0.01  # weight of the other levels: breaks ties in the slowest one
TRANSPOSED = 4.0  # vectors moved for one of C whose columns are not contiguous
STORED = 2.0  # transfers of an element of C: its line is read before it is written


def capacities(context: Context) -> tuple[float, float, float]:
    """Bytes that a thread may fill of L1, L2 and L3, each shared with the other threads on it."""
    target, threads = context.target, context.threads
    l1, l2, l3 = (USABLE * target.share(cache.name, threads) for cache in target.levels)
    return l1, l2, l3


def rates(context: Context) -> tuple[float, float, float, float]:
    """Bytes a second into the registers, L1, L2 and L3 of one of the threads."""
    l2, l3, memory = context.rates
    return LOADED * context.machine.peak * 1e9, l2 * 1e9, l3 * 1e9, memory * 1e9


def slowest(seconds: list[Count]) -> Count:
    """The seconds of the slowest level, and a little of all others."""
    most = seconds[0]
    for level in seconds[1:]:
        most = np.maximum(most, level)
    total: Count = (1 - OTHERS) * most + OTHERS * sum(seconds, np.zeros(1))
    return total


def bytes_moved(nest: TripCounts, operand: Operand, size: Count, depth: int) -> Count:
    """Bytes of an operand into the level that holds ``size`` of it inside ``depth`` loops.

    A partial last trip moves only its part of what the loop indexes, but refetches the rest fully.
    """
    trips = [
        ratio if operand.uses(dim) else trip
        for dim, ratio, trip in zip(nest.dims, nest.ratios, nest.trips, strict=True)
    ]
    return size * refetches(operand, nest.dims, trips, depth)


def bytes_without_reuse(nest: TripCounts, operand: Operand, size: Count) -> Count:
    """Bytes of an operand into a level that keeps nothing from one call to the next."""
    return size * prod(
        (
            ratio if operand.uses(dim) else trip
            for dim, ratio, trip in zip(nest.dims, nest.ratios, nest.trips, strict=True)
        ),
        start=np.ones(1),
    )


def register_bytes(context: Context, inside: Mapping[str, Count], parts: Count) -> Count:
    """Bytes into the registers, all in whole vectors: a broadcast element of A fills one.

    A of a row is loaded once a tile of columns and reduction step, B of a column once a tile of
    rows; C is stored once a part of the reduction, and loaded for all but the first of ``parts``.
    ``inside`` has the extents of one call.
    """
    contraction, lanes = context.contraction, context.target.isa.lanes_f32
    column = columns_of(contraction)
    vectors = float(-(-column.extent // lanes))
    rows, row_tiles, depth, around = np.ones(1), np.ones(1), 1.0, 1.0
    for dim in contraction.dims:
        if dim.role == "m":
            rows = rows * dim.extent
            row_tiles = row_tiles * np.ceil(dim.extent / inside[dim.name])
        elif dim.role in ("k", "br"):
            depth *= dim.extent
        elif dim.name != column.name:
            around *= dim.extent
    wide = contraction.a.uses(column.name)
    a = rows * depth * (vectors if wide else np.ceil(column.extent / inside[column.name]))
    b = row_tiles * depth * vectors
    out = contraction.out.offset(context.strides[contraction.out.array])
    c = rows * vectors * (2 * parts - 1) * (1.0 if out.coef(column.name) == 1 else TRANSPOSED)
    total: Count = around * (a + b + c) * lanes * FLOAT
    return total


def bottleneck(context: Context, family: Family) -> Count:
    """Seconds of the slowest level, shared by the threads, and of packing.

    Each cache holds the largest sub-nest that fits. Where not even one call fits, nothing is kept
    between calls; where the whole problem fits, only streamed stores cause traffic. Footprints
    are counted in whole cache lines, except those of packed operands.
    """
    nest = trip_counts(family)
    operands = (context.contraction.x, context.contraction.w, context.contraction.out)
    working, volumes = [], []
    for depth in range(len(nest.tiles)):
        sizes = _sizes(context, family, nest, depth)
        working.append(sum(sizes, np.zeros(1)))
        volumes.append(
            [bytes_moved(nest, op, s, depth) for op, s in zip(operands, sizes, strict=True)]
        )
    volumes.append(
        [bytes_without_reuse(nest, op, s) for op, s in zip(operands, sizes, strict=True)]
    )
    working.append(np.zeros(1))
    stored = np.where(family.has(Stream), 1.0, STORED)
    triples = [(a, b, stored * c) for a, b, c in volumes]
    into = [register_bytes(context, nest.tiles[-1], _parts(context, nest))]
    for size in capacities(context):
        into.append(np.where(working[0] <= size, 0.0, traffic(working, triples, size).total))
    into[-1] = np.maximum(into[-1], np.where(family.has(Stream), volumes[0][2], 0.0))
    seconds = slowest([v / rate for v, rate in zip(into, rates(context), strict=True)])
    shares = nest.busiest(family.parallel, context.threads)
    total = (seconds + _packing(context, family, nest)) * shares
    return np.array(np.broadcast_to(total, len(family)))


def _sizes(
    context: Context, family: Family, nest: TripCounts, depth: int
) -> tuple[Count, Count, Count]:
    """Bytes of A, B and C inside a depth."""
    contraction, strides, tile = context.contraction, context.strides, nest.tiles[depth]
    packed = (family.pack >= 0) & (family.pack <= depth)
    lines = line_bytes(contraction.x, strides[contraction.x.array], tile)
    a = np.where(packed, footprint(contraction.x, tile) * contraction.x.bytes, lines)
    b = footprint(contraction.w, tile) * contraction.w.bytes
    return a, b, line_bytes(contraction.out, strides[contraction.out.array], tile)


def _parts(context: Context, nest: TripCounts) -> Count:
    """The number of parts into which the loops split the reduction."""
    reductions = {d.name for d in context.contraction.by_role("k")}
    loops = zip(nest.dims, nest.trips, strict=True)
    return prod((trip for dim, trip in loops if dim in reductions), start=np.ones(1))


def _packing(context: Context, family: Family, nest: TripCounts) -> Count:
    """Seconds of packing: reads and writes of the copy, times the trips of the loops around it."""
    copied, times = np.zeros(len(family)), np.ones(1)
    for depth, (tile, trips) in enumerate(zip(nest.tiles, [*nest.trips, np.ones(1)], strict=True)):
        size = footprint(context.contraction.a, tile) * times
        copied = np.where(family.pack == depth, size, copied)
        times = times * trips
    return copied * 2 * context.contraction.a.bytes / (context.machine.copy * 1e9)
