"""The default ranker: the bound of compute and memories, and features times coefficients.

Beside it a lower bound on a schedule's time; a search discards schedules whose bound is too high.
"""

from __future__ import annotations

from math import prod

import numpy as np

from polysci.cost.estimate import Context, Estimate
from polysci.cost.features import CostCounts, exposed_seconds, features_of
from polysci.polyhedral.contraction import columns_of
from polysci.polyhedral.footprint import Count, load_bound_bytes
from polysci.space.enumerate import Family, RegisterTile
from polysci.space.padding import share_of_work
from polysci.target.coefficients import FITTED


def traffic(context: Context, family: Family) -> Estimate:
    """Return the seconds of every schedule: one thread's, times its share, and starting threads.

    One thread takes as long as compute and the part of the slowest level's transfers that compute
    does not hide, plus features (calls, stores, pages...) times the machine's coefficients.
    """
    nest, machine = CostCounts(context, family), context.machine
    parts = {part: np.zeros(1) for part in ("calls", "packing", "transfer")}
    for feature in features_of(family):
        price = machine.coefficient(feature.coefficient) if feature.coefficient else 1.0
        parts[feature.part] = parts[feature.part] + feature.scaled(nest) * price
    compute = nest.compute_s
    transfer = parts["transfer"] + exposed_seconds(nest)
    imbalance, tasks = nest.imbalance(), nest.tasks()
    shared = tasks > 1  # one task is a serial program: its loops run once
    regions = 1 + (family.pack == 0) + (nest.copies() > 1)
    started = context.fork_seconds * regions * shared
    threads = np.where(shared, context.threads, 1)
    total = compute + parts["calls"] + transfer + parts["packing"]
    seconds = total / threads * imbalance + started

    def by_schedule(part: Count) -> Count:
        return np.array(np.broadcast_to(part, len(family)))

    return Estimate(
        seconds=by_schedule(seconds), compute=by_schedule(compute),
        calls=by_schedule(parts["calls"]), packing=by_schedule(parts["packing"]),
        transfer=by_schedule(transfer), imbalance=by_schedule(imbalance), levels=nest.moved,
    )  # fmt: skip


def work(context: Context, family: Family) -> tuple[Count, dict[str, Count]]:
    """Return one thread's seconds without fitted coefficients, and the counts of each of these."""
    nest, machine, size = CostCounts(context, family), context.machine, len(family)
    fixed = nest.compute_s + exposed_seconds(nest)
    counts = dict.fromkeys(FITTED, np.zeros(size))
    for feature in features_of(family):
        count = np.broadcast_to(feature.scaled(nest), size)
        if feature.coefficient in FITTED:
            counts[feature.coefficient] = count
        else:
            name = feature.coefficient
            fixed = fixed + count * (machine.coefficient(name) if name else 1.0)
    return np.broadcast_to(fixed, size), counts


def lower_bound(context: Context, family: Family) -> Count:
    """A lower bound on the seconds of every schedule of a family.

    The largest of: the FMAs that its register tiles issue, whole vectors and all, at the peak of
    the machine; the bytes that any schedule must load into L1, L2 and L3 (``load_bound_bytes``),
    less what the previous call may have left there, at the bandwidth of the level they come from.
    The work is divided evenly among all threads. The bound contains no prediction, so a schedule
    whose bound exceeds a measured time cannot win.
    """
    safe = context.machine.coefficient("safe_bound")
    return safe * np.maximum(compute_bound(context, family), _loads(context)) / context.threads


def compute_bound(context: Context, family: Family) -> Count:
    """Return one thread's seconds of the FMAs that register tiles issue, at the machine's peak."""
    issued = np.array([_issued_flops(context, tile) for tile in family.tiles])[family.which]
    shares = [share_of_work(context.contraction, packed=packed) for packed in (False, True)]
    skipped = np.where(family.pack >= 0, shares[1], shares[0])
    kernel = family.tiles[0].kernel
    fastest = context.machine.peak * context.machine.fastest(kernel.compute)
    seconds: Count = issued * skipped / (fastest * 1e9)
    return seconds


def _issued_flops(context: Context, tile: RegisterTile) -> float:
    """Floating-point operations of all calls: the last vector of columns is whole."""
    column = columns_of(context.contraction)
    tiles, width = column.extent // tile.kernel.cols, tile.kernel.cols
    rest = -(-(column.extent - tiles * width) // tile.kernel.lanes) * tile.kernel.lanes
    others = prod(d.extent for d in context.contraction.dims if d != column)
    return 2.0 * others * (tiles * width + rest)


def _loads(context: Context) -> float:
    """Seconds of one core for the slowest level's unavoidable loads."""
    target, machine = context.target, context.machine
    rates = (machine.l2, machine.l3, machine.memory)
    return max(
        max(0.0, load_bound_bytes(context.contraction, cache.size) - cache.size) / (rate * 1e9)
        for cache, rate in zip(target.levels, rates, strict=True)
    )
