"""Winograd's algorithm as a row: F(m x m, 3 x 3), its error bound, its cost, its explanation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from polysci.cost import Context
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
from polysci.lower.winograd.nest import lower_winograd
from polysci.lower.winograd.plan import SIZES, WinogradPlan, convolution, refusal, resolve
from polysci.numerics.arrays import Doubles
from polysci.ops.problem import Problem
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives import Ahead
from polysci.space.directives.ahead import toggle_ahead
from polysci.space.enumerate import even_splits
from polysci.space.schedule import Schedule, Transform
from polysci.target import microkernels
from polysci.target.machine import Machine
from polysci.target.target import Target
from polysci.text.tables import bytes_text, columns, pairs, time_text

# Inputs for which every number is an integer that f32 holds: 24 x 24 is what G w G^T divides by at
# most. With |x| <= 1 a sum and all its partial sums stay within 576 x 48 x 48 a channel (48: the
# largest row sum of |A^T| times those of |G| and |B^T|).
EXACT: Final = ExactInputs(largest=1, scale=576, channels=12)


# Lavin and Gray, Fast algorithms for convolutional neural networks, CVPR 2016: B^T, G and A^T.
INPUT: Mapping[int, Doubles] = MappingProxyType(
    {
        2: np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], float),
        4: np.array([
            [4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1],
        ], float),
    }
)  # fmt: skip
FILTER: Mapping[int, Doubles] = MappingProxyType(
    {
        2: np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]], float) / 2,
        4: np.array([
            [6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24],
        ], float) / 24,
    }
)  # fmt: skip
OUTPUT: Mapping[int, Doubles] = MappingProxyType(
    {
        2: np.array([[1, 1, 1, 0], [0, 1, -1, -1]], float),
        4: np.array([
            [1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1],
        ], float),
    }
)  # fmt: skip

# Roundings on the longest path through a transform's two passes, with or without fused
# multiply-adds: 2 of the filter's (double, then rounded), 2 x 1 or 2 x 3 into, 2 x 2 or 2 x 3 back.
_ROUNDINGS: Mapping[int, int] = MappingProxyType({2: 8, 4: 14})
# Vector operations of one tile of one vector of channels, as counted in the compiled code, two of
# which a core does at a time: (m, channels are neighbours) -> (into V, from M).
OPERATIONS = {
    (2, True): (60, 44),
    (2, False): (136, 64),
    (4, True): (174, 130),
    (4, False): (370, 192),
}
ITEM = 4  # bytes
BLOCKS = (1, 2, 3, 4, 6, 8, 16)  # of tiles, in register tiles
PANELS = (1, 2, 4, 8)  # of filters
ALIKE = 4  # at most a fourth of the choices may share tile and kernel


class Winograd(Algorithm[WinogradPlan]):
    """Convolutions of 3x3 filters in f32; ``winograd(m)`` computes m x m outputs a tile."""

    @property
    def exact_inputs(self) -> ExactInputs:
        return EXACT

    def refusal(self, problem: Problem) -> str:
        return refusal(problem)

    def candidates(
        self, problem: Problem, context: Context, count: int | None, limits: SpaceLimits
    ) -> list[Candidate]:
        return rank_schedules(problem, context, count)

    def predict_seconds(self, problem: Problem, context: Context, schedule: Schedule) -> float:
        plan = resolve(problem, schedule, context.threads)
        return estimate(plan, context).seconds

    def other_form(self, problem: Problem, context: Context, schedule: Schedule) -> Schedule | None:
        plan = resolve(problem, schedule, context.threads)
        large = exceeds_l2(plan, context)
        return toggle_ahead(schedule) if large else None

    def lower_bound(self, context: Context, schedule: Schedule) -> float:
        return 0.0

    def resolve(self, problem: Problem, schedule: Schedule, threads: int) -> WinogradPlan:
        return resolve(problem, schedule, threads)

    def lower(self, plan: WinogradPlan, options: EmitOptions) -> LoweredPrimitive:
        return lower_winograd(plan, options)

    def error_terms(
        self, problem: Problem, numbers: Sequence[int], x: Doubles, w: Doubles
    ) -> ErrorTerms:
        (m,) = numbers
        return ErrorTerms(bound_sizes(problem, x, w, m), count_roundings(problem, m))

    def explain(self, request: ExplainRequest) -> WinogradExplanation:
        plan = resolve(request.problem, request.schedule, request.context.threads)
        return WinogradExplanation(request, plan)


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
        parts = [
            (name, time_text(seconds), f"{100 * seconds / predicted.seconds:.1f} %")
            for name, seconds in predicted.parts.items()
        ]
        sections = {
            "Winograd": pairs(_algorithm(plan), width),
            "Buffers": columns(_buffers(plan, predicted), (0, 2)),
            "Prediction": columns([*parts, ("sum", time_text(predicted.seconds), "")]),
        }
        return self.request.render(predicted.seconds, sections, width) + "\n"

    def members(self) -> dict[str, Any]:
        """Return the explanation as JSON members; times are in seconds, sizes in bytes."""
        plan, predicted = self.plan, self.estimate
        return {
            **self.request.members(predicted.seconds),
            "terms": predicted.parts, "tiles": plan.tiles, "points": plan.points,
            "sizes": dict(zip(("U", "V", "M"), predicted.sizes, strict=True)),
        }  # fmt: skip


def _algorithm(plan: WinogradPlan) -> list[tuple[str, str]]:
    conv, m = plan.problem, plan.m
    less = 9 * m * m / plan.points
    done = 9 * conv.P * conv.Q * conv.N / (plan.points * plan.tiles)
    return [
        ("algorithm", f"F({m}x{m}, 3x3): {plan.points} products for {9 * m * m} of a tile"),
        ("fewer products", f"{less:.3g} times; {done:.3g} times with the tiles that overhang"),
        ("tiles", f"{conv.N} x {plan.down} x {plan.across} = {plan.tiles} of {m}x{m} outputs"),
        ("block", f"{plan.t} tiles by {plan.k} filters, {plan.points} GEMMs of depth {conv.C}"),
        ("register tile", f"{plan.kernel.rows} tiles by {plan.kernel.cols} filters"),
        ("order", "each block is transformed, multiplied and transformed back before the next"
         if plan.fused or plan.t == plan.tiles else "all of V first, then block by block"),
    ]  # fmt: skip


def _buffers(plan: WinogradPlan, predicted: WinogradEstimate) -> list[tuple[str, str, str]]:
    purposes = (
        "weights, transformed and packed ahead",
        "input in the transform's domain, " + ("of a block" if plan.fused else "of all tiles"),
        "products of a block",
    )
    return [
        (name, bytes_text(size), what)
        for name, size, what in zip("UVM", predicted.sizes, purposes, strict=True)
    ]


def count_roundings(problem: Problem, m: int) -> int:
    """c of the bound: roundings that one product meets on its way into a result."""
    return convolution(problem).C + _ROUNDINGS[m]


def bound_sizes(problem: Problem, x: NDArray[Any], w: NDArray[Any], m: int) -> Doubles:
    """``|A^T| [sum over c of (|G| |w| |G^T|) . (|B^T| |x| |B|)] |A|`` in float64, shaped as y.

    Times gamma of ``count_roundings`` it bounds the error of F(m x m, 3 x 3), in any order of the
    sums: Barabasz, Anderson, Soodhalter and Gregg, Error analysis and improving the accuracy of
    Winograd convolution for deep neural networks, ACM TOMS 46(4), 2020, section 4.
    """
    conv = convolution(problem)
    into, g, back = (abs(matrix[m]) for matrix in (INPUT, FILTER, OUTPUT))
    images = np.asarray(abs(x), np.float64)
    images = images if conv.layout == "nhwc" else images.transpose(0, 2, 3, 1)
    filters = np.einsum("ar,kcrs,bs->abck", g, np.asarray(abs(w), np.float64), g, optimize=True)
    results = np.empty((conv.N, conv.P, conv.Q, conv.K))
    for image, result in zip(images, results, strict=True):
        v = np.einsum("ai,pqcij,bj->abpqc", into, _tiles(image, conv, m), into, optimize=True)
        points = v.reshape(*v.shape[:2], -1, conv.C) @ filters
        points = points.reshape(*v.shape[:4], conv.K)
        whole = np.einsum("ia,abpqk,jb->piqjk", back, points, back, optimize=True)
        down, _, across, *_ = whole.shape
        result[...] = whole.reshape(down * m, across * m, conv.K)[: conv.P, : conv.Q]
    return results if conv.layout == "nhwc" else np.ascontiguousarray(results.transpose(0, 3, 1, 2))


def _tiles(image: Doubles, conv: Any, m: int) -> Doubles:
    """Tiles of (m + 2)^2 pixels, zeros where they leave the image: [p, q, c, i, j]."""
    high, wide = (-(-extent // m) * m + 2 for extent in (conv.P, conv.Q))
    padded = np.zeros((high, wide, conv.C))
    top, left = conv.pad
    part = image[: max(0, high - top), : max(0, wide - left)]
    padded[top : top + part.shape[0], left : left + part.shape[1]] = part
    windows = sliding_window_view(padded, (m + 2, m + 2), axis=(0, 1))
    return windows[::m, ::m]


@dataclass(frozen=True, slots=True)
class WinogradEstimate:
    """Seconds of a call by parts, of the thread that has most to do; bytes of U, V and M.

    ``weights`` is what reading U takes beyond the GEMMs that hide it.
    """

    into: float
    gemm: float
    weights: float
    back: float
    threads: float
    sizes: tuple[int, int, int]

    @property
    def seconds(self) -> float:
        return self.into + self.gemm + self.weights + self.back + self.threads

    @property
    def parts(self) -> dict[str, float]:
        return {
            "input transform": self.into, "GEMMs": self.gemm, "weights": self.weights,
            "output transform": self.back, "threads": self.threads,
        }  # fmt: skip


def estimate(plan: WinogradPlan, context: Context) -> WinogradEstimate:
    """The prediction for one plan by the machine's own rates; cold filters come from memory."""
    return _Cost(plan, context).estimate()


def exceeds_l2(plan: WinogradPlan, context: Context) -> bool:
    """Return whether a call does not find the filters in L2: it pays to prefetch them."""
    return _Cost(plan, context)._u_far()


@dataclass(frozen=True, slots=True)
class _Cost:
    plan: WinogradPlan
    context: Context

    @property
    def machine(self) -> Machine:
        return self.context.machine

    def _coefficient(self, name: str) -> float:
        return self.context.machine.coefficient(name)

    def _held_bytes(self) -> float:
        """Bytes of L2 that stay there."""
        return self._coefficient("winograd_held") * self.target.second_level.size

    @property
    def target(self) -> Target:
        return self.context.target

    def estimate(self) -> WinogradEstimate:
        plan = self.plan
        into, back = self._transforms()
        gemm, weights = self._gemm(), self._weights()
        hidden = self._coefficient("hidden_l3") if self._u_far() else 0.0
        if self.context.cold or self._u_bytes() + self._images() > self.target.last_level.size:
            hidden = self._coefficient("hidden_memory")
        shown = max(0.0, weights - gemm * self._arrival()) + hidden * min(weights, gemm)
        regions = 0 if plan.teams == 1 else 1 + (not plan.fused)
        sizes = (ITEM * plan.packed, ITEM * plan.v_size, ITEM * plan.m_size)
        fork = regions * self._coefficient("fork_us") * 1e-6
        return WinogradEstimate(into, gemm, shown + self._read_again(), back, fork, sizes)

    def _share(self, dims: str) -> float:
        """Return the busiest thread's share of the work along these dimensions."""
        plan = self.plan
        parallel = [loop.dim for loop in plan.schedule.parallel] if plan.teams > 1 else []
        if not set(dims) & set(parallel):
            return 1.0
        all_, task = {"t": plan.tiles, "k": plan.filters}, {"t": plan.t, "k": plan.k}
        tasks = prod(-(-all_[dim] // task[dim]) for dim in parallel)
        most = -(-tasks // plan.teams) * prod(task[dim] / all_[dim] for dim in parallel)
        return min(1.0, most)

    def _gemm(self) -> float:
        """Register tiles at their measured rates, with calls, runs and stores of M."""
        plan = self.plan
        full, last = divmod(plan.tiles, plan.t)
        panels = plan.filters // plan.kernel.cols
        total = full * self._panel(plan.t) + (self._panel(last) if last else 0.0)
        return plan.points * panels * total * self._share("tk")

    def _panel(self, tiles: int) -> float:
        """One point of ``tiles`` tiles by one panel of filters."""
        whole, rest = divmod(tiles, self.plan.kernel.rows)
        return whole * self._call(self.plan.kernel.rows) + (self._call(rest) if rest else 0.0)

    def _call(self, rows: int) -> float:
        kernel, machine = self.plan.kernel, self.machine
        name = f"{kernel.family}_{kernel.isa}_{kernel.compute}_{rows}x{kernel.cols}"
        rate = machine.peak * machine.of_kernel(name, rows, kernel.vecs)
        fma = rows * kernel.vecs
        crowd = (
            max(1.0, (rows + kernel.vecs) / fma / self._coefficient("winograd_loads"))
            if fma >= self._coefficient("in_flight")
            else 1.0
        )
        compute = 2.0 * rows * kernel.cols * self.plan.problem.C / rate * crowd
        events = self._coefficient("call_ns") + self._coefficient("run_ns")
        events += self._coefficient("store_ns") * fma
        return (compute + events) * 1e-9

    def _transforms(self) -> tuple[float, float]:
        plan, conv, lanes = self.plan, self.plan.problem, self.plan.kernel.lanes
        operations = OPERATIONS[plan.m, conv.layout == "nhwc"]
        slot = 2e-9 * lanes / self.machine.peak
        far = self._rate(self._images() + (self._u_bytes() if self._u_far() else 0))
        near = [-(-count // lanes) * plan.tiles * n * slot
                for count, n in zip((conv.C, conv.K), operations, strict=True)]  # fmt: skip
        halo = ((plan.m + 2) / plan.m) ** 0.5  # neighbouring tiles meet in the caches, rows apart
        x, y = ITEM * prod(conv.x_shape), ITEM * prod(conv.y_shape)
        moved = [self._coefficient("winograd_scattered") * halo * x / far, 2 * y / far]
        if self._block() > self._held_bytes():  # V and M are written and fetched once more
            spilled = self._rate(self._block())
            width = {"t": plan.tiles, "k": plan.filters}
            moved[0] += 2.0 * ITEM * plan.points * width["t"] * plan.v_tile / spilled
            moved[1] += 2.0 * ITEM * plan.points * width["t"] * width["k"] / spilled
        into = (near[0] + moved[0]) * (self._share("t") if plan.fused else 1.0 / plan.teams)
        return into, (near[1] + moved[1]) * self._share("tk")

    def _weights(self) -> float:
        """Return the seconds of reading U: once a block of tiles, or once where it stays."""
        again = self._reads()
        near = (again - 1) * self._u_bytes() / self._rate(self._u_bytes() + self._block())
        share = self._share("k") if again == 1 else self._share("tk")
        return (self._u_bytes() / self._u_rate() + near) * share

    def _reads(self) -> int:
        """Return the number of times that U comes from beyond L2."""
        order = [loop.dim for loop in self.plan.schedule.loops]
        stays = order[:1] == ["k"] and self._k_bytes() < self._held_bytes()
        return 1 if stays else -(-self.plan.tiles // self.plan.t)

    def _u_rate(self) -> float:
        """Bytes a second at which U comes for the first time."""
        if not self._u_far():
            return self._rate(0)
        everything = self._u_bytes() + self._images()
        return self._rate(
            max(everything, self.target.last_level.size + 1) if self.context.cold else everything
        )

    def _read_again(self) -> float:
        """Return the seconds that later calls wait for panels while the next ones arrive in L2."""
        if not self._u_far():
            return 0.0
        full, last = divmod(self.plan.tiles, self.plan.t)
        calls = full * self.plan.calls + -(-last // self.plan.kernel.rows)
        seconds = (calls - self._reads()) * self._u_bytes() / (self.machine.l2 * 1e9)
        return self._coefficient("winograd_again") * max(0.0, seconds) * self._share("tk")

    def _arrival(self) -> float:
        """The part of the GEMMs during which U arrives: its first reads, or prefetches."""
        plan = self.plan
        _, first, end = plan.prefetch
        busy = end - first if plan.schedule.has(Ahead) else 1
        return busy / plan.calls if self._u_far() else 1.0

    def _u_bytes(self) -> int:
        return ITEM * self.plan.packed

    def _k_bytes(self) -> int:
        """Return the bytes of U of one block of filters."""
        return ITEM * self.plan.points * self.plan.problem.C * self.plan.k

    def _u_far(self) -> bool:
        """Return whether U is not in L2."""
        return self.context.cold or self._u_bytes() + self._block() > self._held_bytes()

    def _block(self) -> int:
        """Bytes of V and M that one block works on, and of one panel of U."""
        plan = self.plan
        panel = plan.problem.C * plan.kernel.cols
        return ITEM * (plan.points * plan.v_tile * plan.v_tiles + plan.m_size + panel)

    def _images(self) -> int:
        conv = self.plan.problem
        return ITEM * (prod(conv.x_shape) + prod(conv.y_shape))

    def _rate(self, size: float) -> float:
        """Bytes a second of one thread from the level that holds so many bytes."""
        machine, teams = self.machine, self.plan.teams
        if size <= self._held_bytes():
            return machine.l2 * 1e9
        if size <= self.target.last_level.size:
            return min(machine.l3, machine.l3_all / teams) * 1e9
        return min(machine.memory, machine.memory_all / teams) * 1e9


def rank_schedules(problem: Problem, context: Context, count: int | None = None) -> list[Candidate]:
    """The ``count`` schedules of least predicted time (None: all), ties by their text.

    At most a fourth of them share tile and kernel, so that an error of the model does not decide
    for all. Raises UnsupportedError for a problem without a Winograd transform.
    """
    convolution(problem)
    every: dict[str, Candidate] = {}
    for schedule in schedules(problem, context.target.isa.name, context.threads):
        plan = resolve(problem, schedule, context.threads)
        if exceeds_l2(plan, context):
            schedule = schedule.having(Ahead())
            plan = replace(plan, schedule=schedule)
        if str(schedule) not in every:
            seconds = estimate(plan, context).seconds
            every[str(schedule)] = Candidate(schedule, seconds)
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


def schedules(problem: Problem, isa: str, threads: int) -> Iterator[Schedule]:
    """The whole space, in a deterministic order."""
    conv = convolution(problem)
    kernels = {
        (kernel.rows, kernel.cols): str(kernel)
        for way in microkernels.ways("brgemm", isa, "f32")
        for kernel in way
    }
    lanes = microkernels.lanes(isa)
    for m in SIZES:
        tiles = conv.N * -(-conv.P // m) * -(-conv.Q // m)
        for cols in sorted({cols for _, cols in kernels}):
            if cols - lanes >= -(-conv.K // lanes) * lanes:
                continue
            filters = -(-conv.K // cols) * cols
            most = max(rows for rows, width in kernels if width == cols)
            for rows in even_splits(tiles, most, 3):
                blocks = _steps(rows, BLOCKS, tiles, threads)
                widths = _steps(cols, PANELS, filters, threads)
                for t in blocks:
                    for k in widths:
                        for steps in _orders(m, t, k, tiles, filters, threads):
                            yield Schedule(steps, kernels[rows, cols])


def _steps(unit: int, factors: Sequence[int], extent: int, threads: int) -> list[int]:
    """Whole units by some factors, an even share of every thread, and all."""
    share = -(-extent // (threads * unit)) * unit
    return sorted({min(step, extent) for step in (*(unit * f for f in factors), share, extent)})


def _orders(
    m: int, t: int, k: int, tiles: int, filters: int, threads: int
) -> Iterator[tuple[Loop | Transform, ...]]:
    """Loops around and inside the transform; with threads some loop is parallel."""
    word, shared = Transform("winograd", (m,)), threads > 1
    over_t = [Loop("t", t, shared)] if t < tiles else []
    over_k = [Loop("k", k, shared)] if k < filters else []
    serial_t = [Loop("t", t)] if t < tiles else []
    serial_k = [Loop("k", k)] if k < filters else []
    if over_t or not shared:
        yield (*over_t, word, *serial_k)
    if over_k:
        yield (word, *over_k, *serial_t)
