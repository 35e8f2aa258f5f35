"""The default ranker: the bound of compute and memories, and features times coefficients."""

from __future__ import annotations

import numpy as np

from polysci.cost.estimate import Context, Estimate
from polysci.cost.features import FEATURES, CostCounts, exposed_seconds
from polysci.polyhedral.footprint import Count
from polysci.space.enumerate import Family
from polysci.target.coefficients import FITTED


def traffic(context: Context, family: Family) -> Estimate:
    """Return the seconds of every schedule: one thread's, times its share, and starting threads.

    One thread takes as long as compute and the part of the slowest level's transfers that compute
    does not hide, plus features (calls, stores, pages...) times the machine's coefficients.
    """
    nest, machine = CostCounts(context, family), context.machine
    parts = {part: np.zeros(1) for part in ("calls", "packing", "transfer")}
    for feature in FEATURES:
        price = machine.coefficient(feature.coefficient) if feature.coefficient else 1.0
        parts[feature.part] = parts[feature.part] + feature.scaled(nest) * price
    compute = nest.compute_s
    transfer = parts["transfer"] + exposed_seconds(nest)
    imbalance, tasks = nest.imbalance(), nest.tasks()
    shared = tasks > 1  # one task is a serial program: its loops run once
    regions = 1 + (family.pack == 0) + (nest.copies() > 1)
    started = machine.coefficient("fork_us") * 1e-6 * regions * shared
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
    fixed, counts = nest.compute_s + exposed_seconds(nest), dict[str, Count]()
    for feature in FEATURES:
        count = np.broadcast_to(feature.scaled(nest), size)
        if feature.coefficient in FITTED:
            counts[feature.coefficient] = count
        else:
            name = feature.coefficient
            fixed = fixed + count * (machine.coefficient(name) if name else 1.0)
    return np.broadcast_to(fixed, size), counts
