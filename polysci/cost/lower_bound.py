"""A lower bound on a schedule's time; a search discards schedules whose bound is too high."""

from __future__ import annotations

from math import prod

import numpy as np

from polysci.cost.estimate import Context
from polysci.polyhedral.contraction import columns_of
from polysci.polyhedral.footprint import Count, load_bound_bytes
from polysci.space.enumerate import Family, RegisterTile
from polysci.space.padding import share_of_work

SAFE = 0.9  # of the bound: a core may clock higher than when it was measured


def lower_bound(context: Context, family: Family) -> Count:
    """A lower bound on the seconds of every schedule of a family.

    The largest of: the FMAs that its register tiles issue, whole vectors and all, at the peak of
    the machine; the bytes that any schedule must load into L1, L2 and L3 (``load_bound_bytes``),
    less what the previous call may have left there, at the bandwidth of the level they come from.
    The work is divided evenly among all threads. The bound contains no prediction, so a schedule
    whose bound exceeds a measured time cannot win.
    """
    issued = np.array([_issued(context, tile) for tile in family.tiles])[family.which]
    shares = [share_of_work(context.contraction, packed=packed) for packed in (False, True)]
    skipped = np.where(family.pack >= 0, shares[1], shares[0])
    kernel = family.tiles[0].kernel
    fastest = context.machine.peak * context.machine.fastest(kernel.compute)
    compute = issued * skipped / (fastest * 1e9)
    return SAFE * np.maximum(compute, _loads(context)) / context.threads


def _issued(context: Context, tile: RegisterTile) -> float:
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
        for cache, rate in zip(target.caches, rates, strict=True)
    )
