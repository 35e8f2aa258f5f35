"""Count the lines that threads read and write in another thread's caches.

In a network a thread's caches hold what it wrote last. The count takes as given that of T threads
each has one of T equal parts of every input and result, cut along rows of pixels, or rows of a
matrix: schedules that share rows among threads in this order read and write their own part.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from polysci.cost.traffic_counts import TrafficCounts
from polysci.numerics.arrays import LINE
from polysci.polyhedral.contraction import Contraction, Dim, Operand, owned_rows
from polysci.polyhedral.footprint import Count


def foreign_lines(nest: TrafficCounts) -> Count:
    """Return the lines of x and of C that threads touch and do not have, all threads together.

    A schedule whose B changes from call to call has none: rows of pixels do not cut such a B.
    """
    contraction, threads = nest.contraction, nest.context.threads
    rows = owned_rows(contraction, nest.context.strides)
    parallel = nest.tasks() > 1
    if rows is None or not parallel.any():
        return np.zeros(1)
    position = nest.dims.index(rows.name) if rows.name in nest.dims else nest.depth
    first = (position < nest.family.parallel) & (np.prod(nest.loops[:position], axis=0) == 1)
    by_rows = _foreign_rows(nest, position) / rows.extent if first.any() else np.zeros(1)
    total = np.zeros(len(nest.family))
    for operand, beyond in ((contraction.x, _halo(contraction, rows)), (contraction.out, 0.0)):
        near = by_rows + (threads - 1) * min(1.0, beyond / rows.extent)
        lines = nest.lines(operand, nest.tiles[0]) / LINE
        total = total + lines * np.where(first, near, _foreign_copies(nest, operand))
    return np.where(parallel, total, 0.0)


def _halo(contraction: Contraction, rows: Dim) -> float:
    """Return how many rows of x, in those of C, a part of C's rows reads beyond its own."""
    for axis in contraction.x.index:
        if step := axis.coef(rows.name):
            taps = (abs(axis.coef(d.name)) * (d.extent - 1) for d in contraction.by_role("br"))
            return max(0.0, sum(taps) + 1 - step) / step
    return 0.0


def _foreign_copies(nest: TrafficCounts, operand: Operand) -> Count:
    """Return how often threads touch an operand outside of their own rows, in whole operands.

    This holds where they do not share its rows first. Threads that share another dimension of it
    touch it once together, each a part of all rows; otherwise each touches all of it.
    """
    threads = nest.context.threads
    splits = np.zeros(len(nest.family), dtype=bool)
    for position in range(int(nest.family.parallel.max())):
        shared = (position < nest.family.parallel) & (nest.loops[position] > 1)
        splits |= shared & operand.uses(nest.dims[position])
    return np.where(splits, 1 - 1 / threads, threads - 1.0)


def _foreign_rows(nest: TrafficCounts, position: int) -> Count:
    """Return the rows of other parts which tasks of threads touch, if the loop over rows is first.

    Loops inside it may cut a block of rows: a thread then has a share of each of these rows.
    """
    threads, ends = nest.context.threads, nest.task_ends()
    extent = nest.contraction.extent(nest.dims[position])
    step = np.minimum(nest.family.steps[:, position], extent)
    inner, part = nest.tasks() / nest.loops[position], extent / threads

    def before(task: Count, end: float) -> Count:
        whole = np.floor(task / inner)
        cut = np.clip(end - whole * step, 0.0, np.minimum(step, extent - whole * step))
        rows: Count = np.minimum(whole * step, end) + (task / inner - whole) * np.maximum(cut, 0.0)
        return rows

    foreign = np.zeros(len(nest.family))
    for thread, (first, last) in enumerate(pairwise(ends)):
        low, high = thread * part, (thread + 1) * part
        own = before(last, high) - before(last, low) - before(first, high) + before(first, low)
        foreign = foreign + before(last, extent) - before(first, extent) - own
    return foreign
