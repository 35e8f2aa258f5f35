"""The default ranker: register-tile compute, traffic over all cache levels, packing, balance."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from polysci.polyhedral.footprint import LINE, Count, LevelTraffic
from polysci.rank.estimate import Context, Estimate
from polysci.rank.traffic_counts import USABLE, TrafficCounts
from polysci.space.enumerate import Family, RegisterTile
from polysci.space.padding import share_of_work

SCATTERED = 2.5  # of a contiguous store: a vector that leaves through a transpose


def traffic(context: Context, family: Family) -> Estimate:
    """Seconds of every schedule: what one thread does, times its share, and starting threads.

    One thread's work is compute, plus what the slowest level's transfers take beyond the compute
    that hides them, plus counted events (calls, stores, pages...) at the machine's fitted prices.
    """
    nest, machine = TrafficCounts(context, family), context.machine
    compute, levels = _compute(nest), nest.levels()
    counts = _counts(nest, compute, levels)
    cost = {name: count * machine.price(name) for name, count in counts.items()}
    calls = _sum(cost, "call_ns", "run_ns", "store_ns", "reload_ns")
    packing = _sum(cost, "copy_ns", "gather_ns")
    hidden = _sum(cost, "page_ns", "hidden_l2", "hidden_l3", "hidden_memory")
    transfer = hidden + _exposed(nest, compute, levels)
    imbalance, tasks = nest.imbalance(), nest.tasks()
    shared = tasks > 1  # one task is a serial program: its loops run once
    started = machine.fork_us * 1e-6 * (1 + (family.pack == 0)) * shared
    threads = np.where(shared, context.threads, 1)
    seconds = (compute + calls + transfer + packing) / threads * imbalance + started

    def each(part: Count) -> Count:
        return np.array(np.broadcast_to(part, len(family)))

    return Estimate(
        seconds=each(seconds), compute=each(compute), calls=each(calls), packing=each(packing),
        transfer=each(transfer), imbalance=each(imbalance), levels=levels,
    )  # fmt: skip


def work(context: Context, family: Family) -> tuple[Count, dict[str, Count]]:
    """One thread's seconds that no price touches, and the counts that the prices multiply."""
    nest = TrafficCounts(context, family)
    compute, levels = _compute(nest), nest.levels()
    size = len(family)
    counts = {
        name: np.broadcast_to(count, size) for name, count in _counts(nest, compute, levels).items()
    }
    return np.broadcast_to(compute + _exposed(nest, compute, levels), size), counts


def _sum(cost: Mapping[str, Count], *names: str) -> Count:
    return sum((cost[name] for name in names), start=np.zeros(1))


def _counts(
    nest: TrafficCounts, compute: Count, levels: tuple[LevelTraffic, LevelTraffic, LevelTraffic]
) -> dict[str, Count]:
    """How much of everything that has a price a schedule has, by the price's name.

    Names that end in ``_ns`` count events in units of 1e-9, so that the price is nanoseconds an
    event; the ``hidden_`` ones are seconds of transfer under compute, and their price is the share
    that shows.
    """
    calls = nest.calls()
    stored = calls * nest.by_tile(lambda tile: _stored(nest, tile))
    copied, contiguous = _copied(nest)
    found = {
        "call_ns": calls * 1e-9,
        "run_ns": calls * _runs(nest) * 1e-9,
        "store_ns": stored * 1e-9,
        "reload_ns": np.where(nest.splits() > 1, stored, 0.0) * 1e-9,
        "page_ns": nest.pages() * 1e-9,
        "copy_ns": copied * contiguous / LINE * 1e-9,
        "gather_ns": copied * (not contiguous) / LINE * 1e-9,
    }
    for name, seconds in zip(("l2", "l3", "memory"), _transfers(nest, levels), strict=True):
        found[f"hidden_{name}"] = np.minimum(seconds, compute)
    return found


def _exposed(
    nest: TrafficCounts, compute: Count, levels: tuple[LevelTraffic, LevelTraffic, LevelTraffic]
) -> Count:
    """Seconds that the slowest level's transfers take beyond the compute."""
    one, two, three = _transfers(nest, levels)
    beyond: Count = np.maximum(np.maximum(np.maximum(one, two), three) - compute, 0.0)
    return beyond


def _transfers(
    nest: TrafficCounts, levels: tuple[LevelTraffic, LevelTraffic, LevelTraffic]
) -> tuple[Count, Count, Count]:
    """Seconds of moving bytes out of L2, L3 and memory, all threads' together on one core's time.

    What the caches still hold from the run before costs nothing, unless they are cold. The
    bandwidth of L3 and memory is shared by the threads.
    """
    context = nest.context
    machine, threads = context.machine, context.threads
    target = context.target
    sizes = (target.l1, target.l2, target.l3)
    whole = nest.whole()
    rates = (
        machine.l2,
        min(machine.l3, machine.l3_all / target.sharing("l3", threads)),
        min(machine.memory, machine.memory_all / threads),
    )
    found = []
    for level, size, rate in zip(levels, sizes, rates, strict=True):
        stays = not context.cold and whole <= USABLE * size
        found.append(np.zeros(1) if stays else level.total / (rate * 1e9))
    return found[0], found[1], found[2]


def _compute(nest: TrafficCounts) -> Count:
    """Seconds of FMA work: every register tile at its kernel's measured rate, tails included.

    Taps that lie in the padding are skipped, unless packing filled it and little would be saved.
    """
    shares = [share_of_work(nest.contraction, packed=packed) for packed in (False, True)]
    skipped = np.where(nest.packed, shares[1], shares[0])
    return nest.by_tile(lambda tile: _tile_seconds(nest, tile)) * skipped


def _tile_seconds(nest: TrafficCounts, tile: RegisterTile) -> float:
    kernel, machine, sizes = tile.kernel, nest.context.machine, dict(tile.sizes)
    around = prod(
        d.extent
        for d in nest.contraction.dims
        if d.role in ("k", "br", "m", "batch") and d.name not in sizes
    ) * _idle(nest)
    column, total = nest.column.name, 0.0
    parts = [_parts(nest, name, size) for name, size in sizes.items() if name != column]
    for count, rows in _combine(parts):
        for columns, width in _parts(nest, column, sizes[column]):
            vecs = -(-width // nest.lanes)
            name = f"{kernel.family}_{kernel.isa}_{kernel.compute}_{rows}x{vecs * nest.lanes}"
            wide = vecs * kernel.shifts
            rate = machine.peak * machine.of_kernel(name, rows, wide, kernel.compute)
            total += count * columns * rows * vecs * nest.lanes * 2.0 / (rate * 1e9)
    return total * around


def _idle(nest: TrafficCounts) -> float:
    """Steps that words of k take over those that the reduction has."""
    word = nest.compute.vnni_factor
    if word == 1 or nest.family.tiles[0].kernel.family != "brgemm":
        return 1.0
    steps = prod(d.extent for d in nest.contraction.by_role("k"))
    return -(-steps // word) * word / steps


def _parts(nest: TrafficCounts, name: str, size: int) -> list[tuple[int, int]]:
    """How many tiles of which size cut a dimension."""
    whole, rest = divmod(nest.dim(name).extent, size)
    return [(whole, size)] + ([(1, rest)] if rest else [])


def _runs(nest: TrafficCounts) -> Count:
    """Runs of one call: neighbouring taps join where A is contiguous across them."""
    contraction = nest.contraction
    taps = [d for d in contraction.by_role("br") if contraction.a.uses(d.name)]
    depths = contraction.by_role("k")
    if not taps:
        return np.ones(1)
    offset = contraction.a.offset(nest.context.strides[contraction.a.array])
    channels = prod(d.extent for d in depths)
    joined = channels == 1 or any(
        offset.coef(taps[-1].name) == channels * offset.coef(d.name) for d in depths
    )
    inner = taps[-1].extent
    direct, packed = 1 if joined else inner, 1 if nest.family.pad == 0 else inner
    around = prod(d.extent for d in taps[:-1])
    return around * np.where(nest.packed, packed, direct).astype(np.float64)


def _stored(nest: TrafficCounts, tile: RegisterTile) -> float:
    """Vectors of C that one call stores; a transposed tile costs as its whole blocks."""
    out = nest.contraction.out
    if out.offset(nest.context.strides[out.array]).coef(nest.column.name) == 1:
        return tile.rows * tile.kernel.vecs
    return SCATTERED * -(-tile.rows // nest.lanes) * nest.lanes * tile.kernel.vecs


def _copied(nest: TrafficCounts) -> tuple[Count, bool]:
    """Bytes of A that packing writes in all, and whether it reads them in contiguous runs."""
    family, contraction = nest.family, nest.contraction
    copied, times = np.zeros(len(family)), np.ones(1)
    for depth in range(int(family.pack.max()) + 1):
        times = times * nest.loops[depth - 1] if depth else times
        copied = np.where(family.pack == depth, nest.copied(depth) * times, copied)
    depths = [d.name for d in contraction.by_role("k")]
    offset = contraction.a.offset(nest.context.strides[contraction.a.array])
    contiguous = any(offset.coef(name) == 1 for name in [*depths, nest.column.name])
    return copied, contiguous


def _combine(parts: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Products of (count, size) over several dimensions."""
    found = [(1, 1)]
    for part in parts:
        found = [(n * count, rows * size) for n, rows in found for count, size in part]
    return found
