"""Winograd's algorithm as a row: its error bound, its cost, its explanation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, prod
from types import MappingProxyType
from typing import Any, Final

from polysci.cost import Context
from polysci.cost.winograd import TileCounts, WinogradCosts, WinogradEstimate, WinogradWork
from polysci.errors import UnsupportedError
from polysci.lower.algorithm import (
    Algorithm,
    Candidate,
    EmitOptions,
    ErrorTerms,
    ExactInputs,
    ExplainRequest,
    SpaceLimits,
)
from polysci.lower.lowering import LoweredPrimitive
from polysci.lower.winograd import groups
from polysci.lower.winograd.bounds import (
    ROUNDING,
    bound_sizes,
    count_roundings,
    rounded_sizes,
)
from polysci.lower.winograd.groups import GroupedExplanation, GroupedWinograd
from polysci.lower.winograd.integers import exact_inputs
from polysci.lower.winograd.launches import lower_launches
from polysci.lower.winograd.nest import lower_winograd
from polysci.lower.winograd.plan import WinogradPlan, resolve
from polysci.lower.winograd.tiles import (
    OutputTile,
    convolution,
    numbers_of,
    planes_of,
    refusal,
    steps_of,
    tile_of,
    tile_sizes,
)
from polysci.numerics.arrays import Doubles
from polysci.numerics.filtering import Filtering
from polysci.ops.problem import Problem
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives import Ahead
from polysci.space.directives.ahead import toggle_ahead
from polysci.space.enumerate import even_splits
from polysci.space.schedule import Schedule, Transform
from polysci.target import microkernels
from polysci.target.target import Target
from polysci.text.tables import bytes_text

# Vector operations of a pass along an axis by the points of a part, into V; back by outputs too.
INTO: Final[Mapping[int, int]] = MappingProxyType({3: 2, 4: 4, 5: 9, 6: 12, 8: 26})
BACK: Final[Mapping[tuple[int, int], int]] = MappingProxyType(
    {(2, 3): 2, (2, 4): 4, (2, 5): 6, (4, 5): 8, (2, 6): 8, (4, 6): 10, (2, 8): 12, (4, 8): 16}
)
# Others, as counted in the compiled code: loads for each point, into and back; the epilogue for
# each pixel of y; turns for each one whose channels lie apart, of x and of y.
LOADS: Final = (1.0, 0.75)
EPILOGUE: Final = 4
TURNED: Final = (8, 4)
RUN = 8  # tiles that are turned together: PS_RUN of microkernels/winograd_in.h
BOX = 8 * 36  # pixels of such tiles: PS_BOX
ITEM = 4  # bytes
BLOCKS = (1, 2, 3, 4, 6, 8, 16)  # of tiles, in register tiles
PANELS = (1, 2, 4, 8)  # of filters
ALIKE = 4  # at most a fourth of the choices may share tile and kernel


class Winograd(Algorithm[WinogradPlan | GroupedWinograd]):
    """Convolutions over one or two axes in f32, by tiles of outputs.

    ``winograd(m)`` has m outputs along each axis of several taps, ``winograd(m,n)`` those of two.
    """

    name = "winograd"

    def exact_inputs(self, problem: Problem) -> ExactInputs:
        return exact_inputs(problem)

    @property
    def languages(self) -> tuple[str, ...]:
        return ("c", "cuda", "opencl")

    def refusal(self, problem: Problem) -> str:
        return refusal(problem)

    def candidates(
        self, problem: Problem, context: Context, count: int | None, limits: SpaceLimits
    ) -> list[Candidate]:
        """The schedules of least predicted time; on a device, those of groups, if it has any."""
        if context.target.isa.language == "c":
            return rank_schedules(problem, context, count, self.name)
        every = groups.rank(problem, context)
        return every if count is None else every[: count + limits.kinds]

    def predict_seconds(self, problem: Problem, context: Context, schedule: Schedule) -> float:
        plan = self.resolve(problem, schedule, context.threads)
        if isinstance(plan, GroupedWinograd):
            return groups.predict(plan, context)
        return estimate(plan, context).seconds

    def other_form(self, problem: Problem, context: Context, schedule: Schedule) -> Schedule | None:
        plan = self.resolve(problem, schedule, context.threads)
        if isinstance(plan, GroupedWinograd):
            return None
        large = exceeds_l2(plan, context)
        return toggle_ahead(schedule) if large else None

    def resolve(
        self, problem: Problem, schedule: Schedule, threads: int
    ) -> WinogradPlan | GroupedWinograd:
        if schedule.mapped:
            return groups.resolve(problem, schedule)
        return resolve(problem, schedule, threads)

    def lower(self, plan: WinogradPlan | GroupedWinograd, options: EmitOptions) -> LoweredPrimitive:
        if isinstance(plan, GroupedWinograd):
            return lower_launches(plan, options)
        return lower_winograd(plan, options)

    def error_terms(
        self, problem: Problem, numbers: Sequence[int], x: Doubles, w: Doubles
    ) -> ErrorTerms:
        conv = convolution(problem)
        tile = tile_of(conv, numbers)
        return ErrorTerms(bound_sizes(problem, x, w, tile), count_roundings(conv, tile))

    def explain(self, request: ExplainRequest) -> WinogradExplanation | GroupedExplanation:
        plan = self.resolve(request.problem, request.schedule, request.context.threads)
        if isinstance(plan, GroupedWinograd):
            return GroupedExplanation(request, plan)
        return WinogradExplanation(request, plan)


class RoundedWinograd(Winograd):
    """Winograd's algorithm with transformed filters in f16, on CPUs.

    They are half as many bytes; products and sums are f32. A power of two for each filter keeps its
    numbers within the range of f16.
    """

    name = "winograd_f16"

    @property
    def languages(self) -> tuple[str, ...]:
        return ("c",)

    def resolve(
        self, problem: Problem, schedule: Schedule, threads: int
    ) -> WinogradPlan | GroupedWinograd:
        if schedule.mapped:
            raise UnsupportedError(f"schedule {schedule}: {self.name} has code for CPUs alone")
        return resolve(problem, schedule, threads)

    def error_terms(
        self, problem: Problem, numbers: Sequence[int], x: Doubles, w: Doubles
    ) -> ErrorTerms:
        own = super().error_terms(problem, numbers, x, w)
        tile = tile_of(convolution(problem), numbers)
        rounded = ROUNDING * rounded_sizes(problem, x, w, tile)
        return replace(own, sizes=(1 + ROUNDING) * own.sizes, rounded=rounded)


@dataclass(frozen=True, slots=True)
class WinogradExplanation:
    """The explanation of a Winograd schedule: tiles, buffers, and where the predicted time goes."""

    request: ExplainRequest
    plan: WinogradPlan

    @property
    def nest(self) -> None:
        return None

    @property
    def estimate(self) -> WinogradEstimate:
        return estimate(self.plan, self.request.context)

    def render(self, width: int | None = None) -> str:
        plan, predicted = self.plan, self.estimate
        return self.request.render_parts(
            "Winograd", _algorithm(plan), _buffers(plan, predicted), predicted.parts, width
        )

    def members(self) -> dict[str, Any]:
        """Return the explanation as JSON members; times are in seconds, sizes in bytes."""
        plan, predicted = self.plan, self.estimate
        return {
            **self.request.members(predicted.seconds),
            "terms": predicted.parts, "tiles": plan.tiles, "points": plan.points,
            "sizes": dict(zip(("U", "V", "M"), predicted.sizes, strict=True)),
        }  # fmt: skip


def _algorithm(plan: WinogradPlan) -> list[tuple[str, str]]:
    conv, tile = plan.problem, plan.tile
    taps = prod(conv.taps)
    direct = taps * tile.pixels
    less = direct / plan.points
    done = taps * conv.P * conv.Q * conv.N / (plan.points * plan.tiles)
    return [
        ("algorithm", f"{tile}: {plan.points} products for {direct} of a tile"),
        ("fewer products", f"{less:.3g} times; {done:.3g} times with the tiles that overhang"),
        ("tiles", f"{conv.N} x {plan.down} x {plan.across} = {plan.tiles} of {tile.outputs} "
         "outputs"),
        ("block", f"{plan.t} tiles by {plan.k} filters, {plan.points} GEMMs of depth {plan.depth}"),
        ("register tile", f"{plan.kernel.rows} tiles by {plan.kernel.cols} filters"),
        ("order", "each block is transformed, multiplied and transformed back before the next"
         if plan.fused or plan.t == plan.tiles else "all of V first, then block by block"),
    ]  # fmt: skip


def _buffers(plan: WinogradPlan, predicted: WinogradEstimate) -> list[tuple[str, str, str]]:
    purposes = (
        f"weights, transformed and packed ahead in {plan.stored}",
        "input in the transform's domain, " + ("of a block" if plan.fused else "of all tiles"),
        "products of a block",
    )
    return [
        (name, bytes_text(size), what)
        for name, size, what in zip("UVM", predicted.sizes, purposes, strict=True)
    ]


def estimate(plan: WinogradPlan, context: Context) -> WinogradEstimate:
    """The prediction for one plan by the machine's own rates; cold filters come from memory."""
    return WinogradCosts(count_work(plan), context).estimate()


def exceeds_l2(plan: WinogradPlan, context: Context) -> bool:
    """Return whether a call does not find the filters in L2: it pays to prefetch them."""
    return WinogradCosts(count_work(plan), context).weights_far


def count_work(plan: WinogradPlan) -> WinogradWork:
    """Return what a plan computes and moves."""
    conv, lanes, points, item = plan.problem, plan.kernel.lanes, plan.points, plan.stored.bytes
    full, last = divmod(plan.tiles, plan.t)
    order = [loop.dim for loop in plan.schedule.loops]
    into, back = count_operations(plan.tile, turned_pixels(plan))
    _, first, end = plan.prefetch
    planes = planes_of(plan.origin).taps
    arriving = end - first if plan.schedule.has(Ahead) else 1
    return WinogradWork(
        kernel=plan.kernel, depth=plan.depth, teams=plan.teams, fused=plan.fused,
        operations=(planes * -(-conv.C // planes // lanes) * plan.tiles * into,
                    -(-conv.K // lanes) * plan.tiles * back),
        gemms=points * (plan.filters // plan.kernel.cols), blocks=_blocks(plan),
        panel_reads=full * plan.calls + -(-last // plan.kernel.rows),
        arriving=arriving / plan.calls, halo=plan.tile.halo**0.25,
        x=ITEM * prod(conv.x_shape), y=ITEM * prod(conv.y_shape),
        u=item * plan.packed, v=ITEM * plan.v_size, m=ITEM * plan.m_size,
        u_block=item * points * plan.depth * plan.k if order[:1] == ["k"] else None,
        block=ITEM * (points * plan.v_tile * plan.v_tiles + plan.m_size)
        + item * plan.depth * plan.kernel.cols,
        passes=(ITEM * points * plan.tiles * plan.v_tile,
                ITEM * points * plan.tiles * plan.filters),
        shares={dims: _share(plan, dims) for dims in ("t", "k", "tk")},
        widened=item < ITEM,
    )  # fmt: skip


def _blocks(plan: WinogradPlan) -> tuple[tuple[int, TileCounts], ...]:
    """Return the register tiles of a block of tiles by one panel, whole blocks and the last."""

    def tiles_of(tiles: int) -> TileCounts:
        whole, rest = divmod(tiles, plan.kernel.rows)
        return (whole, plan.kernel.rows), *[(1, rest)] * (rest > 0)

    full, last = divmod(plan.tiles, plan.t)
    return (full, tiles_of(plan.t)), *[(1, tiles_of(last))] * (last > 0)


def count_operations(tile: OutputTile, turned: tuple[float, float]) -> tuple[float, float]:
    """Return vector operations for a tile and a vector of channels: into V, and back from M.

    ``turned`` are the pixels of x and of y that are turned. Two operations are done at a time.
    """
    down, across = tile.down, tile.across
    (down_into, down_back), (across_into, across_back) = map(_pass_operations, (down, across))
    into = across.points * down_into + down.points * across_into
    back = across.points * down_back + down.m * across_back
    more = LOADS[0] * tile.points, LOADS[1] * tile.points + EPILOGUE * tile.pixels
    more_into, more_back = (
        own + each * pixels for own, each, pixels in zip(more, TURNED, turned, strict=True)
    )
    return into + more_into, back + more_back


def turned_pixels(plan: WinogradPlan) -> tuple[float, float]:
    """Return how many pixels of x, and of y, are turned for a tile, on average.

    None where channels are neighbours. Tiles of a dilated filter that lie side by side form groups:
    pixels of whole groups are neighbours, those of a part of one are turned column by column, where
    a vector that is not full takes as long as a full one.
    """
    if plan.problem.layout == "nhwc":
        return 0.0, 0.0
    (down, across), (_, step) = (plan.tile.down, plan.tile.across), steps_of(plan.problem)
    fit, pitch, lanes = BOX // down.points, across.m * across.stride, plan.kernel.lanes
    overlap = across.points - pitch
    groups = min(RUN // step, (fit // step - overlap) // pitch)

    def pixels(block: int, whole: float, columns: int) -> float:
        shared, (near, far) = gcd(block, step), sorted((block, step))
        cuts = (1 - shared / near) / far  # groups that blocks cut in two
        part = min(RUN, fit // across.points, near)
        vectors = columns * lanes * -(-part // lanes)
        if groups > 0 and block >= step:
            return whole + 2 * cuts * vectors
        return (-(-near // part) / near + cuts) * vectors

    read = pixels(plan.v_tiles, pitch + overlap / max(1, groups), across.points)
    return down.points * read, down.m * pixels(plan.t, across.m, across.m)


def _pass_operations(axis: Filtering) -> tuple[int, int]:
    """Return vector operations of a pass along an axis: into V, and back."""
    parts = [points for points in axis.parts if points > axis.m]
    sums = axis.m * (len(axis.parts) - 1)
    return sum(INTO[own] for own in parts), sum(BACK[axis.m, own] for own in parts) + sums


def _share(plan: WinogradPlan, dims: str) -> float:
    """Return the busiest thread's share of the work along these dimensions."""
    parallel = [loop.dim for loop in plan.schedule.parallel] if plan.teams > 1 else []
    if not set(dims) & set(parallel):
        return 1.0
    all_, task = {"t": plan.tiles, "k": plan.filters}, {"t": plan.t, "k": plan.k}
    tasks = prod(-(-all_[dim] // task[dim]) for dim in parallel)
    most = -(-tasks // plan.teams) * prod(task[dim] / all_[dim] for dim in parallel)
    return min(1.0, most)


def rank_schedules(
    problem: Problem, context: Context, count: int | None = None, name: str = Winograd.name
) -> list[Candidate]:
    """The ``count`` schedules of least predicted time (None: all), ties by their text.

    ``name`` is that of their transform. At most a fourth of them share tile and kernel, so that an
    error of the model does not decide for all. Where there is one block, too small to share, one
    thread computes it. Narrower vectors serve where groups have too few filters. Raises
    UnsupportedError for a problem without a Winograd transform.
    """
    conv = convolution(problem)
    every: dict[str, Candidate] = {}
    teams = dict.fromkeys((context.threads, 1))
    spaces = product(_instruction_sets(context.target), teams)
    found = ([*schedules(problem, isa, threads, name)] for isa, threads in spaces)
    for schedule in next(filter(None, found), []):
        plan = resolve(problem, schedule, context.threads)
        if exceeds_l2(plan, context):
            schedule = schedule.having(Ahead())
            plan = replace(plan, schedule=schedule)
        if str(schedule) not in every:
            seconds = estimate(plan, context).seconds
            every[str(schedule)] = Candidate(schedule, seconds)
    if not every:
        raise UnsupportedError(
            f"{problem}: algorithm {name}: no kernel for {context.target.isa} has columns "
            f"that divide the {conv.K // conv.groups} filters of a group"
        )
    ordered = sorted(
        every.values(), key=lambda candidate: (candidate.seconds, str(candidate.schedule))
    )
    if count is None:
        return ordered
    alike: Counter[tuple[str, str]] = Counter()
    chosen = list[Candidate]()
    for candidate in ordered:
        kind = str(candidate.schedule.transform), candidate.schedule.kernel
        alike[kind] += 1
        if alike[kind] <= max(2, count // ALIKE) and len(chosen) < count:
            chosen.append(candidate)
    return chosen


def _instruction_sets(target: Target) -> list[str]:
    """Return a target's instruction set, and behind it the narrower ones that it runs as well."""
    own = target.isa
    runs = [
        isa for isa in target.runnable
        if isa.machine == own.machine and isa.lanes_f32 < own.lanes_f32
    ]  # fmt: skip
    return [isa.name for isa in (own, *sorted(runs, key=lambda isa: -isa.lanes_f32))]


def schedules(
    problem: Problem, isa: str, threads: int, name: str = Winograd.name
) -> Iterator[Schedule]:
    """The whole space, in a deterministic order; ``name`` is that of the transform."""
    conv = convolution(problem)
    kernels = {
        (kernel.rows, kernel.cols): str(kernel)
        for way in microkernels.ways("brgemm", isa, "f32")
        for kernel in way
    }
    lanes = microkernels.lanes(isa)
    for tile in tile_sizes(conv):
        tiles, word = tile.tiles(conv), Transform(name, numbers_of(tile))
        for cols in sorted({cols for _, cols in kernels}):
            if cols - lanes >= -(-conv.K // lanes) * lanes:
                continue
            if conv.groups > 1 and conv.K // conv.groups % cols:
                continue
            filters = -(-conv.K // cols) * cols
            most = max(rows for rows, width in kernels if width == cols)
            for rows in even_splits(tiles, most, 3):
                blocks = _steps(rows, BLOCKS, tiles, threads)
                widths = _steps(cols, PANELS, filters, threads)
                for t in blocks:
                    for k in widths:
                        for steps in _orders(word, t, k, tiles, filters, threads):
                            yield Schedule(steps, kernels[rows, cols])


def _steps(unit: int, factors: Sequence[int], extent: int, threads: int) -> list[int]:
    """Whole units by some factors, an even share of every thread, and all."""
    share = -(-extent // (threads * unit)) * unit
    return sorted({min(step, extent) for step in (*(unit * f for f in factors), share, extent)})


def _orders(
    word: Transform, t: int, k: int, tiles: int, filters: int, threads: int
) -> Iterator[tuple[Loop | Transform, ...]]:
    """Loops around and inside the transform; with threads some loop is parallel."""
    shared = threads > 1
    over_t = [Loop("t", t, shared)] if t < tiles else []
    over_k = [Loop("k", k, shared)] if k < filters else []
    serial_t = [Loop("t", t)] if t < tiles else []
    serial_k = [Loop("k", k)] if k < filters else []
    if over_t or not shared:
        yield (*over_t, word, *serial_k)
    if over_k:
        yield (word, *over_k, *serial_t)
