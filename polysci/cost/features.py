"""The features of the cost model: named counts of a family, each with its coefficient.

A prediction is ``bound + sum of coefficient x feature``. A feature is a function of a family's
counts; its row in FEATURES names the coefficient (``polysci.target.coefficients``) and the field of
an Estimate that it belongs to. A feature without a coefficient is in seconds already. One that a
directive names (``Directive.features``) counts where the family has that directive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from math import prod
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from polysci.cost.compute import compute_seconds, dot_seconds, runs_of_call
from polysci.cost.estimate import Context
from polysci.cost.foreign import foreign_lines
from polysci.cost.traffic_counts import PERIODS, TrafficCounts
from polysci.numerics.arrays import LINE, PAGE
from polysci.polyhedral.contraction import REDUCTIONS
from polysci.polyhedral.footprint import Count, LevelTraffic
from polysci.polyhedral.footprint import traffic as level_traffic
from polysci.space import directives
from polysci.space.directives import Ahead, Stream
from polysci.space.directives.ahead import Panels, panels_beyond
from polysci.space.directives.plain import columns_touch
from polysci.space.directives.private import needs_copy
from polysci.space.enumerate import Family, RegisterTile, row_dims
from polysci.target.coefficients import TABLE, prior_of

UNITS: Mapping[str, float] = MappingProxyType({"ns": 1e-9, "us": 1e-6})  # in seconds


class CostCounts(TrafficCounts):
    """Counts of a family, and what several features share of them, each computed once."""

    @cached_property
    def moved(self) -> tuple[LevelTraffic, LevelTraffic, LevelTraffic]:
        """Traffic into L1, L2 and L3."""
        return self.levels()

    @cached_property
    def compute_s(self) -> Count:
        """Seconds of the microkernel."""
        return compute_seconds(self)

    @cached_property
    def stored(self) -> Count:
        """Vectors of C that calls store, in contiguous stores."""
        return self.calls() * self.by_tile(lambda tile: _vectors_stored(self, tile))

    @cached_property
    def transfers(self) -> tuple[Count, Count, Count]:
        """Seconds that one core would take to move all bytes out of L2, L3 and memory.

        A problem that fits a cache costs nothing there, unless caches are cold. The threads share
        the bandwidth of L3 and memory. L3 takes lines of C while it delivers others.
        """
        context, target = self.context, self.context.target
        sizes = [cache.size for cache in target.levels]
        problem_bytes = self.total_bytes()
        taken = (
            np.zeros(1), np.where(self.family.has(Stream), 0.0, self.moved[1].c / 2), np.zeros(1),
        )  # fmt: skip
        seconds = []
        for level, its, size, rate in zip(self.moved, taken, sizes, context.rates, strict=True):
            stays = not context.cold and problem_bytes <= context.usable(size)
            seconds.append(np.zeros(1) if stays else (level.total - its) / (rate * 1e9))
        return seconds[0], seconds[1], seconds[2]

    @cached_property
    def panels_beyond_l2(self) -> Panels | None:
        """The panels of B, where L2 does not hold them all."""
        family, kernel = self.family, self.family.tiles[0].kernel
        return panels_beyond(self.contraction, kernel, family.dims, family.steps, self.context.l2)


def exposed_seconds(nest: CostCounts) -> Count:
    """Return seconds of the slowest level's transfers that compute does not hide.

    What stays of B in L2 arrives there while calls read it for the first time, or, prefetched,
    while earlier calls ask for it: what takes longer than these shows.
    """
    return np.maximum(_beyond_compute(nest), _panel_arrivals(nest))


def first_reads(nest: CostCounts) -> Count:
    """Return seconds of B's first reads from beyond L2 under compute, where nothing prefetches it.

    They come from L3. Cores foresee a stream of panels, each read once, but not a panel after many
    reads of the one before.
    """
    panels = nest.panels_beyond_l2
    if panels is None:
        return np.zeros(1)
    l3, memory = _panel_seconds(nest)
    again = (panels.calls > 1) | (panels.reuse > 1)
    return np.where(again, _hidden_seconds(nest, panels, np.maximum(l3 - memory, 0.0)), 0.0)


def first_reads_memory(nest: CostCounts) -> Count:
    """Return seconds of B's reads from memory under compute, where nothing prefetches it."""
    panels = nest.panels_beyond_l2
    return np.zeros(1) if panels is None else _hidden_seconds(nest, panels, _panel_seconds(nest)[1])


def late_prefetches(nest: CostCounts) -> Count:
    """Return seconds of B's reads from memory by ``ahead(B)`` that come late, or too early.

    They come late the more of the bandwidth they need while calls ask for them, and leave L2 before
    their use the more of it a panel and the next one fill.
    """
    panels = nest.panels_beyond_l2
    if panels is None:
        return np.zeros(1)
    ahead = nest.family.has(Ahead) & panels.follow(nest.context.l2)
    memory = _panel_seconds(nest)[1]
    busy = np.minimum(1.0, memory / (nest.compute_s * panels.shares(ahead)))
    filled = np.minimum(1.0, 2 * panels.size / (prior_of("ahead_cache") * nest.context.l2))
    hidden = np.minimum(memory, nest.compute_s * panels.shares(np.zeros_like(ahead)))
    return np.where(ahead, hidden * busy * filled, 0.0)


def _hidden_seconds(nest: CostCounts, panels: Panels, seconds: Count) -> Count:
    """Seconds of reads of B under the compute of first reads, 0 where panels are prefetched."""
    prefetched = nest.family.has(Ahead) & panels.follow(nest.context.l2)
    hidden = np.minimum(seconds, nest.compute_s * panels.shares(prefetched))
    return np.where(prefetched, 0.0, hidden)


def first_rows(nest: CostCounts) -> Count:
    """Return seconds of A's first reads from beyond L2 under compute, by one in several calls.

    Calls that read a part of A again find it in L2, so that its lines arrive in bursts.
    """
    size, reuse = nest.context.usable(nest.context.l2), np.ones(1)
    again = np.ones(1)
    for depth in reversed(range(nest.depth)):
        if not nest.contraction.x.uses(nest.dims[depth]):
            reuse = reuse * nest.trips[depth]
        again = np.where(nest.occupancy(depth, PERIODS[1]) <= size, reuse, again)
    _, l3, memory = nest.transfers
    near, far = nest.moved[1:]
    arrivals = np.maximum(l3 * near.a / near.total, memory * far.a / far.total)
    hidden = np.minimum(arrivals, nest.compute_s / again)
    return np.where((again > 1) & ~nest.packed, hidden, 0.0)


def far_reloads(nest: CostCounts) -> Count:
    """Return the lines of C from beyond L2 that calls add to."""
    far = nest.context.cold or nest.total_bytes() > nest.context.usable(nest.context.l2)
    again = 1 - 1 / np.maximum(nest.splits(), 1.0)
    return nest.moved[1].c / (2 * LINE) * again * far


def panel_waits(nest: CostCounts) -> Count:
    """Return seconds by which calls wait for first lines of panels beyond their other waits."""
    return np.maximum(_panel_arrivals(nest) - _beyond_compute(nest), 0.0)


def _beyond_compute(nest: CostCounts) -> Count:
    beyond: Count = np.maximum(reduce(np.maximum, nest.transfers) - nest.compute_s, 0.0)
    return beyond


def _panel_arrivals(nest: CostCounts) -> Count:
    """Seconds that calls wait for lines of B from beyond L2, which they read for the first time."""
    panels = nest.panels_beyond_l2
    if panels is None:
        return np.zeros(1)
    under = panels.shares(nest.family.has(Ahead) & panels.follow(nest.context.l2))
    waits: Count = np.maximum(*_panel_seconds(nest)) - nest.compute_s * under
    return waits


def _panel_seconds(nest: CostCounts) -> tuple[Count, Count]:
    """Seconds that panels of B take out of L3 and out of memory."""
    _, l3, memory = nest.transfers
    return l3 * nest.moved[1].b / nest.moved[1].total, memory * nest.moved[2].b / nest.moved[
        2
    ].total


def calls(nest: CostCounts) -> Count:
    """Return how often the microkernel is entered."""
    return nest.calls()


def runs(nest: CostCounts) -> Count:
    """Return the runs of reduction loops of all calls."""
    return nest.calls() * runs_of_call(nest)


def stores(nest: CostCounts) -> Count:
    """Return the vectors of C that calls store."""
    return nest.stored


def reloads(nest: CostCounts) -> Count:
    """Return the vectors of C that later calls add to."""
    return np.where(nest.splits() > 1, nest.stored, 0.0)


def _vectors_stored(nest: TrafficCounts, tile: RegisterTile) -> float:
    """Vectors of C that one call stores; a transposed tile counts as full blocks."""
    out, machine = nest.contraction.out, nest.context.machine
    if out.offset(nest.context.strides[out.array]).coef(nest.column.name) == 1:
        return tile.rows * tile.kernel.vecs * _sparse(nest)
    blocks = -(-tile.rows // nest.lanes) * nest.lanes * tile.kernel.vecs
    return machine.coefficient("scattered_store") * blocks


def _sparse(nest: TrafficCounts) -> float:
    """Return the average cost of a vector of C where columns are positions that C may lack."""
    image = nest.contraction.image
    if image is None or not image.gaps:
        return 1.0
    share = min(1.0, (nest.lanes + image.pitch - image.columns - 1) / image.pitch)
    return 1.0 + (nest.context.machine.coefficient("sparse_store") - 1.0) * share


def prefetches(nest: CostCounts) -> Count:
    """Return the lines of B that ``ahead(B)`` asks for: each panel once, each time it comes."""
    ahead = nest.family.has(Ahead)
    if nest.contraction.swapped:  # B is x: the first calls of each block of pixels ask for a line
        return ahead * nest.pixel_lines()
    panels = nest.panels_beyond_l2
    if panels is None:
        return np.zeros(1)
    times = nest.calls() / np.maximum(panels.calls, panels.reuse)
    return ahead * (times * panels.size / LINE)


def private_sums(nest: CostCounts) -> Count:
    """Return seconds of one core that sums the private copies: it reads them, C comes and goes.

    So does one copy of what C cannot keep.
    """
    context, copies = nest.context, nest.copies()
    machine, target = context.machine, context.target
    size = prod(nest.contraction.out.shape) * (4.0 * copies + 2.0 * nest.contraction.out.bytes)
    slower = np.where(size > context.usable(target.last_level.size), machine.memory, machine.l3)
    rate = np.where(size > context.usable(context.l2 * context.threads), slower, machine.l2)
    kept = (nest.splits() > 1) & needs_copy(nest.contraction, nest.family.tiles[0].kernel)
    seconds: Count = np.where((copies > 1) | kept, size / (rate * 1e9), 0.0)
    return seconds


def copied_lines(nest: CostCounts) -> Count:
    """Return the lines of A and of panels that packing copies from contiguous runs."""
    (copied, contiguous), (panels, in_rows) = _packing_bytes(nest), bytes_to_pack(nest)
    return (copied * contiguous + panels * in_rows) / LINE


def gathered_lines(nest: CostCounts) -> Count:
    """Return the lines of A and of panels that packing gathers element by element."""
    (copied, contiguous), (panels, in_rows) = _packing_bytes(nest), bytes_to_pack(nest)
    return (copied * (not contiguous) + panels * (not in_rows)) / LINE


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


def rounded_numbers(nest: CostCounts) -> Count:
    """Return the seconds of rounding numbers of A to bytes while they are packed."""
    if not nest.compute.bytes_of_x or not nest.packed.any():
        return np.zeros(1)
    context = nest.context
    slot = 2e-9 * nest.lanes / context.peak
    numbers = _packing_bytes(nest)[0] / nest.compute.bytes
    return numbers * context.machine.coefficient(f"round_{nest.compute.name}") * slot


def row_bytes(context: Context) -> int:
    """Return the bytes from one row of B to the next: the distance of its steps of k."""
    b = context.contraction.b
    offset = b.offset(context.strides[b.array])
    return b.bytes * max((offset.coef(d.name) for d in context.contraction.by_role("k")), default=0)


def bytes_to_pack(nest: TrafficCounts) -> tuple[float, bool]:
    """Return the bytes of B's panels that a call writes, and whether it reads contiguous runs.

    Runs of a B beyond L2 whose rows are pages apart cost as much as single elements.
    """
    contraction = nest.contraction
    if not contraction.packs_b:
        return 0.0, True
    offset = contraction.w.offset(nest.context.strides[contraction.w.array])
    apart = row_bytes(nest.context) >= PAGE and nest.panels() > nest.context.l2
    return nest.panels(), offset.coef(nest.column.name) == 1 and not apart


def seconds_to_copy(
    nest: TrafficCounts, copy: Count | float, *, streams: bool | NDArray[np.bool_] = True
) -> Count:
    """Return seconds a byte of what is read from beyond L2 into a copy of so many bytes.

    A small copy stays in L2; others replace lines of L3, or go to memory and come back.
    ``streams``: no lines are skipped, so that prefetchers bring what is read.
    """
    context = nest.context
    target, machine = context.target, context.machine
    _, l3, memory = context.rates
    cold = context.cold or nest.total_bytes() > context.usable(target.last_level.size)
    in_l3 = copy <= context.usable(target.last_level.size) / target.sharing(
        target.last_level.name, context.threads
    )
    again = np.where(copy <= kept_copy(nest), 0.0, np.where(in_l3, 1 / l3, 2 / memory))
    slower = np.where(streams, 1.0, machine.coefficient("skipped_line"))
    seconds: Count = 1e-9 * (slower / (memory if cold else l3) + again)
    return seconds


def kept_copy(nest: TrafficCounts) -> float:
    """Return the bytes of a copy that stays in L2."""
    return nest.context.l2 * nest.context.machine.coefficient("copy_kept")


def copy_transfers(nest: CostCounts) -> Count:
    """Return seconds that lines of A come from beyond L2, and go there, while they are copied.

    Nothing is computed meanwhile.
    """
    if not nest.packed.any():
        return np.zeros(1)
    copy = nest.whole_copy()
    beyond = nest.total_bytes() + copy > (
        0 if nest.context.cold else nest.context.usable(nest.context.l2)
    )
    return beyond * _packing_bytes(nest)[0] * seconds_to_copy(nest, copy)


def panel_transfers(nest: TrafficCounts) -> Count:
    """Return seconds that panels of all of B, which L2 does not hold, come and go in a copy.

    Of a problem that fits the last level without its copy, that loses more lines the more both
    fill of it, beyond the share that a copy may.
    """
    panels = nest.panels()
    if not nest.contraction.packs_b or panels <= kept_copy(nest):
        return np.zeros(1)
    context, size = nest.context, nest.context.target.last_level.size
    _, l3, memory = context.rates
    fits = not context.cold and nest.total_bytes() <= context.usable(size)
    kept = context.machine.coefficient("copy_kept")
    full = ((nest.total_bytes() + panels) / size - kept) / (1 - kept)
    lost = fits * min(1.0, max(0.0, full))
    return panels * (seconds_to_copy(nest, panels) + lost * 1e-9 * max(0.0, 1 / memory - 1 / l3))


def pages(nest: CostCounts) -> Count:
    """Return the misses of the first-level translation buffer."""
    return nest.pages()


def seeks(nest: CostCounts) -> Count:
    """Return the runs of x's lines that begin in traffic from beyond L2."""
    far = nest.context.cold or nest.total_bytes() > nest.context.usable(nest.context.l2)
    return nest.seeks(nest.moved[1]) if far else np.zeros(1)


def hidden_panels(nest: CostCounts) -> Count:
    """Return seconds of panels of B out of L2 under compute: one stream, which cores prefetch."""
    return _under_compute(nest, 0) * (nest.moved[0].b / nest.moved[0].total)


def hidden_l2(nest: CostCounts) -> Count:
    """Return seconds of A out of L2 under compute; what of C comes from there, its vectors tell."""
    return _under_compute(nest, 0) * (nest.moved[0].a / nest.moved[0].total)


def hidden_l3(nest: CostCounts) -> Count:
    """Return seconds of transfers out of L3 under compute."""
    return _under_compute(nest, 1)


def hidden_memory(nest: CostCounts) -> Count:
    """Return seconds of transfers out of memory under compute."""
    return _under_compute(nest, 2)


def _under_compute(nest: CostCounts, level: int) -> Count:
    under: Count = np.minimum(nest.transfers[level], nest.compute_s)
    return under


def beside_l3(nest: CostCounts) -> Count:
    """Return seconds of L2 beyond compute while slower levels deliver for longer."""
    l2, l3, memory = nest.transfers
    return np.maximum(np.minimum(l2, np.maximum(l3, memory)) - nest.compute_s, 0.0)


def panel_gaps(nest: CostCounts) -> Count:
    """Return how often reads of B wait for memory where a panel is not behind the one before.

    B lies panel by panel, the whole reduction of some columns in each: calls that go on along the
    reduction, or from whole panel to whole panel, read one stream. Nothing waits where earlier
    calls have prefetched the panel. Rows of a plain B have costs of their own.
    """
    context = nest.context
    in_rows = context.contraction.plain and columns_touch(context.contraction, context.strides)
    if in_rows or not nest.transfers[2].any():
        return np.zeros(1)
    panels = nest.panels_beyond_l2
    follow = panels.follow(nest.context.l2) if panels else np.zeros(1, dtype=bool)
    gaps = nest.moved[2].b / _stream_bytes(nest)
    return np.where(nest.family.has(Ahead) & follow, 0.0, gaps)


def _stream_bytes(nest: TrafficCounts) -> Count:
    """Bytes of B that calls read in the order in which they lie."""
    w, call, size = nest.contraction.w, nest.tiles[nest.depth], len(nest.family)
    reductions = [d for d in nest.contraction.dims if d.role in REDUCTIONS and w.uses(d.name)]
    covered = {d.name: call[d.name] for d in reductions}
    goes_on: NDArray[np.bool_] = np.ones(size, dtype=bool)
    streamed = np.broadcast_to(nest.panel_bytes(call), size)
    for position in reversed(range(nest.depth)):
        name, trips = nest.dims[position], nest.trips[position]
        if name in covered:
            covered[name] = nest.tiles[position][name]
        elif w.uses(name):
            for d in reductions:
                goes_on = goes_on & ((covered[d.name] >= d.extent) | (trips == 1))
        else:
            continue
        streamed = np.where(goes_on, streamed * trips, streamed)
    return streamed


def strided_reads(nest: CostCounts) -> Count:
    """Return the L1 misses of strided reads: runs of at most a line of x, which nothing foresees.

    Rows of a call that are neighbours in x make such runs, one for every step of the reduction.
    Where steps are neighbours, those that read the same run have one miss between them.
    """
    x, depths = nest.contraction.x, range(len(nest.tiles))
    if nest.packed.all():
        return np.zeros(1)
    run = nest.runs_of(x, nest.means[nest.depth], LINE)[0]
    if (run > LINE).all():
        return np.zeros(1)
    begun = []
    for depth in depths:
        number = nest.runs_of(x, nest.means[depth], LINE)[1] * nest.times(depth)[0]
        number = np.where(nest.from_copy(depth), 0.0, number / _steps_of_run(nest, depth))
        begun.append((number, np.zeros(1), np.zeros(1)))
    occupied = [nest.occupancy(depth, PERIODS[0]) for depth in depths]
    size = nest.context.usable(nest.context.target.first_level.size)
    misses = level_traffic(occupied, begun, size).a
    return np.where((run <= LINE) & ~nest.packed, misses, 0.0)


def _steps_of_run(nest: CostCounts, depth: int) -> Count:
    """Return how many steps of the sub-nest at a depth read the same run of x."""
    x, tile = nest.contraction.x, nest.tiles[depth]
    offset = x.offset(nest.context.strides[x.array])
    along = [tile[d.name] for d in nest.contraction.by_role("k") if offset.coef(d.name) == 1]
    steps: Count = np.ceil(prod(along, start=np.ones(1)) / nest.compute.vnni_factor)
    return steps


def l1_conflicts(nest: TrafficCounts) -> Count:
    """Return seconds of L2 for lines of A that the steps before have evicted from full sets of L1.

    They are weighted by the share by which rows exceed the ways of a set. A step reads an element
    of each row of a call. Rows a multiple of a page apart share one set, so that a line comes from
    L2 as often as a word of it is read. Tiles of AMX, and outer products, read whole lines.
    Measured: experiments/README.md.
    """
    kernel = nest.family.tiles[0].kernel
    of_rows = kernel.family == "brgemm" and not nest.contraction.swapped
    if not of_rows or not kernel.in_vectors or nest.packed.all():
        return np.zeros(1)
    x, step = nest.contraction.x, nest.tiles[-1]
    run, rows = nest.runs_of(x, step, LINE)
    lines = rows * np.ceil(run / LINE)
    sharing = lines * nest.crowding_of(x, len(nest.tiles) - 1, PERIODS[0]) * LINE / PERIODS[0]
    ways = nest.context.target.first_level.lines_apart(PERIODS[0])
    loads = nest.bytes_moved(len(nest.tiles) - 1)[0] / LINE / nest.compute.vnni_factor
    waits = np.maximum(sharing / ways - 1.0, 0.0) * LINE / nest.context.machine.l2 * 1e-9
    return np.where(nest.packed, 0.0, loads * waits)


def dot_products(nest: CostCounts) -> Count:
    """Return seconds that products along k take beyond the kernel's, of a plain B."""
    if columns_touch(nest.contraction, nest.context.strides):
        return np.zeros(1)
    return dot_seconds(nest) - nest.compute_s


def rows_in_place(nest: CostCounts) -> Count:
    """Return seconds that rows of a B take which calls read where it lies, pages apart.

    Each call comes to as many as it has steps. The first translation buffer finds some of them.
    Those from memory are streams if they are few, which go on in the next call.
    """
    context, contraction, tile = nest.context, nest.contraction, nest.tiles[nest.depth]
    if not columns_touch(contraction, context.strides):
        return np.zeros(1)
    coefficient, column, apart = context.machine.coefficient, nest.column, row_bytes(context)
    width = tile[column.name]
    steps = prod(d.extent for d in contraction.dims if d.role in ("k", "batch"))
    touches = steps * np.ceil(column.extent / width)
    row_tiles = (np.ceil(d.extent / tile[d.name]) for d in row_dims(contraction, context.strides))
    deep = prod(tile[d.name] for d in contraction.by_role("k"))
    rows, calls_on = _rows_side_by_side(nest)
    page = coefficient("walk_ns") * 1e-9 * min(1.0, apart / PAGE)
    row = contraction.b.bytes * width
    kept = coefficient("short_row") * row * 1e-9 / context.machine.l2
    stays = deep * apart <= context.target.second_level.size
    again = np.where(stays, kept, coefficient("row_l3_ns") * 1e-9)
    walk = np.where(rows > coefficient("pages_found"), page, 0.0)
    seconds: Count = touches * (walk + (prod(row_tiles, start=np.ones(1)) - 1) * again)
    operands = (contraction.a, contraction.b, contraction.out)
    size = sum(operand.bytes * prod(operand.shape) for operand in operands)
    if not context.cold and size <= context.usable(context.target.last_level.size):
        return seconds
    lines = np.ceil(row / LINE) + coefficient("first_line")
    alone = touches * lines * coefficient("not_ahead_ns") * 1e-9
    streams = touches / (deep * calls_on) * coefficient("jump_ns") * 1e-9
    return seconds + np.where(rows > 2 * coefficient("streams"), alone, streams)


def _rows_side_by_side(nest: CostCounts) -> tuple[Count, Count]:
    """Return how many rows of B calls read before they go on in the first, and for how many calls.

    Calls go on where the innermost loop that moves in B is one over columns.
    """
    dims = {d.name for d in nest.contraction.dims if d.role in ("k", "batch")}
    tile = nest.tiles[nest.depth]
    beside = prod((tile[name] for name in dims), start=np.ones(1))
    calls_on, undecided = np.ones(1), np.ones(1, dtype=bool)
    for position in reversed(range(nest.depth)):
        name, trips = nest.dims[position], nest.loops[position]
        if name in dims:
            beside = np.where(undecided, beside * trips, beside)
        elif name == nest.column.name:
            calls_on = np.where(undecided & (trips > 1), trips, calls_on)
            undecided = undecided & (trips == 1)
    return beside, calls_on


def copied_parts(nest: CostCounts) -> Count:
    """Return seconds of copying B part by part beside copying the whole, which others charge.

    Nothing is computed while a part comes from beyond L2. Prefetchers do not follow a part of rows
    of B that L2 does not hold. Calls do not wait for panels that were just written, as they do
    otherwise.
    """
    depths = nest.family.panels
    if depths is None or not depths.any():
        return np.zeros(1)
    context, (whole, in_rows) = nest.context, bytes_to_pack(nest)
    price = context.machine.coefficient("copy_ns" if in_rows else "gather_ns") * 1e-9
    part, width = np.zeros(len(nest.family)), np.ones(len(nest.family))
    again = np.ones(len(nest.family))
    for depth in range(1, int(depths.max()) + 1):
        if not nest.contraction.b.uses(nest.dims[depth - 1]):
            again = np.where(depth <= depths, again * nest.loops[depth - 1], again)
        tile = nest.tiles[depth]
        part = np.where(depth == depths, nest.panel_bytes(tile), part)
        width = np.where(depth == depths, tile[nest.column.name], width)
    far = nest.total_bytes() > context.usable(context.l2)
    rows = part * nest.column.extent / width
    streams = (not in_rows) | (rows <= np.maximum(part, kept_copy(nest)))
    read = whole * seconds_to_copy(nest, part, streams=streams) * far
    saved = whole / LINE * price + panel_transfers(nest) + panel_waits(nest)
    return np.where(depths > 0, again * (whole / LINE * price + read) - saved, 0.0)


@dataclass(frozen=True, slots=True)
class Feature:
    """A row: what is counted, its ``coefficient`` ("" for seconds), its part of an Estimate."""

    count: Callable[[CostCounts], Count]
    coefficient: str
    part: str

    @property
    def name(self) -> str:
        """The name of the function that counts it."""
        return self.count.__name__

    def scaled(self, nest: CostCounts) -> Count:
        """Return the count in units in which the coefficient gives seconds."""
        scale = UNITS.get(TABLE[self.coefficient].unit, 1.0) if self.coefficient else 1.0
        return self.count(nest) * scale


FEATURES: tuple[Feature, ...] = (
    Feature(calls, "call_ns", "calls"),
    Feature(runs, "run_ns", "calls"),
    Feature(stores, "store_ns", "calls"),
    Feature(reloads, "reload_ns", "calls"),
    Feature(prefetches, "prefetch_ns", "calls"),
    Feature(private_sums, "", "calls"),
    Feature(dot_products, "", "calls"),
    Feature(copied_lines, "copy_ns", "packing"),
    Feature(gathered_lines, "gather_ns", "packing"),
    Feature(pages, "page_ns", "transfer"),
    Feature(seeks, "seek_ns", "transfer"),
    Feature(hidden_panels, "hidden_panels", "transfer"),
    Feature(hidden_l2, "hidden_l2", "transfer"),
    Feature(hidden_l3, "hidden_l3", "transfer"),
    Feature(hidden_memory, "hidden_memory", "transfer"),
    Feature(first_reads, "first_reads", "transfer"),
    Feature(first_reads_memory, "first_reads_memory", "transfer"),
    Feature(late_prefetches, "late_prefetches", "transfer"),
    Feature(first_rows, "first_rows", "transfer"),
    Feature(far_reloads, "far_reload_ns", "transfer"),
    Feature(beside_l3, "beside_l3", "transfer"),
    Feature(copied_parts, "", "packing"),
    Feature(rounded_numbers, "", "packing"),
    Feature(copy_transfers, "", "transfer"),
    Feature(panel_transfers, "", "transfer"),
    Feature(panel_gaps, "jump_ns", "transfer"),
    Feature(strided_reads, "short_run_ns", "transfer"),
    Feature(l1_conflicts, "l1_conflict", "transfer"),
    Feature(rows_in_place, "", "transfer"),
    Feature(foreign_lines, "foreign_ns", "transfer"),
)


def features_of(family: Family) -> Iterator[Feature]:
    """Return the rows that count for a family: those of directives where it has these."""
    of_directives = {name for row in directives.DIRECTIVES for name in row.features}
    present = {name for row in family.marks for name in row.features}
    return (row for row in FEATURES if row.name in present or row.name not in of_directives)
