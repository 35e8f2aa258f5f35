"""The default ranker: register-tile compute, traffic over all cache levels, packing, balance."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import prod

import numpy as np

from polysci.cost.crowded_rows import crowding_seconds
from polysci.cost.estimate import Context, Estimate
from polysci.cost.panel_copies import bytes_to_pack, panel_transfers, seconds_to_copy
from polysci.cost.panel_jumps import jump_seconds
from polysci.cost.reduction_runs import idle_steps, runs_of_call
from polysci.cost.second_reads import USABLE, level_rates
from polysci.cost.short_runs import short_run_seconds
from polysci.cost.traffic_counts import TrafficCounts
from polysci.polyhedral.footprint import LINE, Count, LevelTraffic
from polysci.space.directives import Ahead, Stream
from polysci.space.directives.ahead import Panels, RowsAhead, panels_beyond
from polysci.space.directives.plain import columns_touch
from polysci.space.directives.private import needs_copy
from polysci.space.enumerate import Family, RegisterTile
from polysci.space.padding import share_of_work

SCATTERED = 2.5  # cost of a vector stored through a transpose, relative to a contiguous store
SPARSE = 3.0  # and of one some of whose lanes C lacks


def traffic(context: Context, family: Family) -> Estimate:
    """Seconds of every schedule: one thread's work, times its share, plus starting the threads.

    One thread's work is compute, plus the part of the slowest level's transfers that compute does
    not hide, plus counted events (calls, stores, pages...) times the machine's fitted coefficients.
    """
    nest, machine = TrafficCounts(context, family), context.machine
    compute, levels = _compute(nest), nest.levels()
    counts = _counts(nest, compute, levels)
    cost = {name: count * machine.coefficient(name) for name, count in counts.items()}
    calls = _sum(cost, "call_ns", "run_ns", "store_ns", "reload_ns", "prefetch_ns")
    calls = calls + _sum_seconds(nest)
    packing = _sum(cost, "copy_ns", "gather_ns")
    hidden = _sum(
        cost, "page_ns", "seek_ns", "hidden_panels", "hidden_l2", "hidden_l3", "hidden_memory",
        "beside_l3",
    )  # fmt: skip
    transfer = hidden + _shown_seconds(nest, compute, levels)
    imbalance, tasks = nest.imbalance(), nest.tasks()
    shared = tasks > 1  # one task is a serial program: its loops run once
    regions = 1 + (family.pack == 0) + (nest.copies() > 1)
    started = machine.fork_us * 1e-6 * regions * shared
    threads = np.where(shared, context.threads, 1)
    seconds = (compute + calls + transfer + packing) / threads * imbalance + started

    def by_schedule(part: Count) -> Count:
        return np.array(np.broadcast_to(part, len(family)))

    return Estimate(
        seconds=by_schedule(seconds), compute=by_schedule(compute), calls=by_schedule(calls),
        packing=by_schedule(packing), transfer=by_schedule(transfer),
        imbalance=by_schedule(imbalance), levels=levels,
    )  # fmt: skip


def work(context: Context, family: Family) -> tuple[Count, dict[str, Count]]:
    """One thread's seconds without coefficients, and the count for each coefficient."""
    nest = TrafficCounts(context, family)
    compute, levels = _compute(nest), nest.levels()
    size = len(family)
    counts = {
        name: np.broadcast_to(count, size) for name, count in _counts(nest, compute, levels).items()
    }
    return np.broadcast_to(compute + _shown_seconds(nest, compute, levels), size), counts


def _sum(cost: Mapping[str, Count], *names: str) -> Count:
    return sum((cost[name] for name in names), start=np.zeros(1))


def _counts(
    nest: TrafficCounts, compute: Count, levels: tuple[LevelTraffic, LevelTraffic, LevelTraffic]
) -> dict[str, Count]:
    """What each coefficient multiplies, by the coefficient's name.

    Names that end in ``_ns`` count events in units of 1e-9, so that the coefficient is nanoseconds
    an event; the ``hidden_`` ones are seconds of transfer under compute, and their coefficient is
    the share that compute does not hide. Panels of B have their own: they come out of L2 in one
    stream, which some cores prefetch in time. What of C comes from there, its vectors tell.
    ``beside_l3`` is of what L2 delivers beyond compute while slower levels deliver for longer.
    """
    calls = nest.calls()
    stored = calls * nest.by_tile(lambda tile: _vectors_stored(nest, tile))
    copied, contiguous = _packing_bytes(nest)
    panels, in_rows = bytes_to_pack(nest)
    seeks = nest.context.cold or nest.total_bytes() > USABLE * nest.l2_bytes
    counts = {
        "call_ns": calls * 1e-9,
        "run_ns": calls * runs_of_call(nest) * 1e-9,
        "store_ns": stored * 1e-9,
        "reload_ns": np.where(nest.splits() > 1, stored, 0.0) * 1e-9,
        "prefetch_ns": _prefetches(nest) * 1e-9,
        "page_ns": nest.pages() * 1e-9,
        "seek_ns": (nest.seeks(levels[1]) if seeks else np.zeros(1)) * 1e-9,
        "copy_ns": (copied * contiguous + panels * in_rows) / LINE * 1e-9,
        "gather_ns": (copied * (not contiguous) + panels * (not in_rows)) / LINE * 1e-9,
    }
    transfers = _transfers(nest, levels)
    l2, l3, memory = transfers
    of_a, of_b = (part / levels[0].total for part in (levels[0].a, levels[0].b))
    shares = {"panels": (l2, of_b), "l2": (l2, of_a), "l3": (l3, 1), "memory": (memory, 1)}
    for name, (seconds, share) in shares.items():
        counts[f"hidden_{name}"] = np.minimum(seconds, compute) * share
    counts["beside_l3"] = np.maximum(np.minimum(l2, np.maximum(l3, memory)) - compute, 0.0)
    return counts


def _shown_seconds(
    nest: TrafficCounts, compute: Count, levels: tuple[LevelTraffic, LevelTraffic, LevelTraffic]
) -> Count:
    """Seconds of transfers and waits beside compute, whatever the machine's coefficients."""
    shown = _exposed_seconds(nest, compute, levels) + _copy_transfers(nest)
    shown = shown + panel_transfers(nest) + _jump_seconds(nest, levels)
    return shown + short_run_seconds(nest) + crowding_seconds(nest)


def _exposed_seconds(
    nest: TrafficCounts, compute: Count, levels: tuple[LevelTraffic, LevelTraffic, LevelTraffic]
) -> Count:
    """Seconds of the slowest level's transfers that compute does not hide.

    What stays of B in L2 arrives there while calls read it for the first time, or, prefetched,
    while earlier calls ask for it: what takes longer than these shows.
    """
    beyond: Count = np.maximum(reduce(np.maximum, _transfers(nest, levels)) - compute, 0.0)
    return np.maximum(beyond, _waits(nest, compute, levels))


def panel_waits(context: Context, family: Family) -> Count:
    """Seconds by which calls wait for the first lines of panels of B beyond their other waits."""
    nest = TrafficCounts(context, family)
    compute, levels = _compute(nest), nest.levels()
    beyond = np.maximum(reduce(np.maximum, _transfers(nest, levels)) - compute, 0.0)
    return np.maximum(_waits(nest, compute, levels) - beyond, 0.0)


def _waits(
    nest: TrafficCounts, compute: Count, levels: tuple[LevelTraffic, LevelTraffic, LevelTraffic]
) -> Count:
    """Seconds that calls wait for lines of B from beyond L2, which they read for the first time."""
    panels = _panels(nest)
    if panels is None:
        return np.zeros(1)
    _, l3, memory = _transfers(nest, levels)
    of_b = [
        seconds * level.b / level.total for seconds, level in ((l3, levels[1]), (memory, levels[2]))
    ]
    under = panels.shares(nest.family.has(Ahead) & panels.follow(nest.l2_bytes))
    waits: Count = np.maximum(of_b[0], of_b[1]) - compute * under
    return waits


def _jump_seconds(
    nest: TrafficCounts, levels: tuple[LevelTraffic, LevelTraffic, LevelTraffic]
) -> Count:
    """Seconds of waiting for panels of B that memory has elsewhere, where nothing prefetches.

    ``plain_reads`` counts the rows of a B without panels.
    """
    context = nest.context
    in_rows = context.contraction.plain and columns_touch(context.contraction, context.strides)
    if in_rows or not _transfers(nest, levels)[2].any():
        return np.zeros(1)
    panels = _panels(nest)
    follow = panels.follow(nest.l2_bytes) if panels else np.zeros(1, dtype=bool)
    return jump_seconds(nest, levels[2], nest.family.has(Ahead) & follow)


def _sum_seconds(nest: TrafficCounts) -> Count:
    """Seconds of one core that sums the private copies: it reads them, and C comes and goes.

    So does one copy of what C cannot keep.
    """
    context, copies = nest.context, nest.copies()
    machine, target = context.machine, context.target
    size = prod(nest.contraction.out.shape) * (4.0 * copies + 2.0 * nest.contraction.out.bytes)
    slower = np.where(size > USABLE * target.last_level.size, machine.memory, machine.l3)
    rate = np.where(size > USABLE * nest.l2_bytes * context.threads, slower, machine.l2)
    kept = (nest.splits() > 1) & needs_copy(nest.contraction, nest.family.tiles[0].kernel)
    seconds: Count = np.where((copies > 1) | kept, size / (rate * 1e9), 0.0)
    return seconds


def _panels(nest: TrafficCounts) -> Panels | None:
    family, kernel = nest.family, nest.family.tiles[0].kernel
    return panels_beyond(nest.contraction, kernel, family.dims, family.steps, nest.l2_bytes)


def _prefetches(nest: TrafficCounts) -> Count:
    """Lines of B that ``ahead(B)`` asks for: those of every panel once, each time it comes."""
    ahead = nest.family.has(Ahead)
    if not ahead.any():
        return np.zeros(1)
    if nest.contraction.swapped:  # B is x: the first calls of each block of pixels ask for a line
        return ahead * nest.pixel_lines()
    panels = _panels(nest)
    if panels is None:
        return np.zeros(1)
    times = nest.calls() / np.maximum(panels.calls, panels.reuse)
    return ahead * (times * panels.size / LINE)


def _transfers(
    nest: TrafficCounts, levels: tuple[LevelTraffic, LevelTraffic, LevelTraffic]
) -> tuple[Count, Count, Count]:
    """Seconds that one core would take to move the bytes of all threads out of L2, L3 and memory.

    A problem that fits a cache costs nothing there, unless caches are cold. The threads share the
    bandwidth of L3 and memory. L3 takes lines of C while it delivers others.
    """
    context = nest.context
    target = context.target
    sizes = [cache.size for cache in target.caches]
    problem_bytes = nest.total_bytes()
    rates = level_rates(context.machine, target, context.threads)
    taken = (np.zeros(1), np.where(nest.family.has(Stream), 0.0, levels[1].c / 2), np.zeros(1))
    seconds = []
    for level, its, size, rate in zip(levels, taken, sizes, rates, strict=True):
        stays = not context.cold and problem_bytes <= USABLE * size
        seconds.append(np.zeros(1) if stays else (level.total - its) / (rate * 1e9))
    return seconds[0], seconds[1], seconds[2]


def _compute(nest: TrafficCounts) -> Count:
    """Seconds of FMA work: every register tile at its kernel's measured rate, tails included.

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


def _tile_seconds(nest: TrafficCounts, tile: RegisterTile, *, packed: bool) -> float:
    kernel, machine, sizes = tile.kernel, nest.context.machine, dict(tile.sizes)
    around = prod(
        d.extent
        for d in nest.contraction.dims
        if d.role in ("k", "br", "m", "batch") and d.name not in sizes
    )
    column, total, asked = nest.column.name, 0.0, 0 if packed else _lines_asked(nest, tile)
    parts = [_parts(nest, name, size) for name, size in sizes.items() if name != column]
    for count, rows in _combine(parts):
        for columns, width in _parts(nest, column, sizes[column]):
            vecs = -(-width // nest.lanes)
            name = f"{kernel.family}_{kernel.isa}_{kernel.compute}_{rows}x{vecs * nest.lanes}"
            wide = vecs * kernel.shifts
            rate = machine.of_kernel(name, rows, wide, kernel.compute)
            loads = rows + vecs + asked if asked else _load_slots(nest, rows, vecs)
            slots = max(rows * vecs / rate, loads)
            total += count * columns * slots * nest.lanes * 2.0 / (machine.peak * 1e9)
    return total * around


def _lines_asked(nest: TrafficCounts, tile: RegisterTile) -> int:
    """Lines of x that a step of the reduction prefetches, where it reads x as it lies."""
    contraction, sizes = nest.contraction, dict(tile.sizes)
    depths = contraction.by_role("k")
    if contraction.swapped or not depths:
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


def _vectors_stored(nest: TrafficCounts, tile: RegisterTile) -> float:
    """Vectors of C that one call stores; a transposed tile counts as full blocks."""
    out = nest.contraction.out
    if out.offset(nest.context.strides[out.array]).coef(nest.column.name) == 1:
        return tile.rows * tile.kernel.vecs * _sparse(nest)
    return SCATTERED * -(-tile.rows // nest.lanes) * nest.lanes * tile.kernel.vecs


def _sparse(nest: TrafficCounts) -> float:
    """What a vector of C costs on average where columns are positions that C may lack."""
    image = nest.contraction.image
    if image is None or not image.gaps:
        return 1.0
    share = min(1.0, (nest.lanes + image.pitch - image.columns - 1) / image.pitch)
    return 1.0 + (SPARSE - 1.0) * share


def _packing_bytes(nest: TrafficCounts) -> tuple[Count, bool]:
    """Bytes of A that packing writes in all, and whether it reads them in contiguous runs."""
    family, contraction = nest.family, nest.contraction
    copied, times = np.zeros(len(family)), np.ones(1)
    for depth in range(int(family.pack.max()) + 1):
        times = times * nest.loops[depth - 1] if depth else times
        copied = np.where(family.pack == depth, nest.copy_bytes(depth) * times, copied)
    if beside := nest.beside:
        copied = copied * nest.line_parts(nest.tiles[0][beside.name], nest.copied_beside)
    depths = [d.name for d in contraction.by_role("k")]
    offset = contraction.x.offset(nest.context.strides[contraction.x.array])
    rows = [nest.beside.name] if nest.beside else []
    contiguous = any(offset.coef(name) == 1 for name in [*depths, *rows, nest.column.name])
    return copied, contiguous


def _copy_transfers(nest: TrafficCounts) -> Count:
    """Seconds that lines come from beyond L2, and go there, while images or panels are copied.

    Nothing is computed meanwhile.
    """
    if (nest.contraction.image is None and not nest.beside) or not nest.packed.any():
        return np.zeros(1)
    copy = nest.whole_copy()
    beyond = nest.total_bytes() + copy > (0 if nest.context.cold else USABLE * nest.l2_bytes)
    return beyond * _packing_bytes(nest)[0] * seconds_to_copy(nest, copy)


def _combine(parts: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Products of (count, size) over several dimensions."""
    products = [(1, 1)]
    for part in parts:
        products = [(n * count, rows * size) for n, rows in products for count, size in part]
    return products
