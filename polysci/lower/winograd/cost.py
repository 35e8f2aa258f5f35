"""Winograd schedules to consider, and their predicted seconds: transforms, GEMMs, caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from polysci.cost import Context
from polysci.lower.algorithm import Candidate
from polysci.lower.winograd.plan import SIZES, WinogradPlan, convolution, resolve
from polysci.ops.problem import Problem
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives import Ahead
from polysci.space.enumerate import even_splits
from polysci.space.schedule import Schedule, Transform
from polysci.target import microkernels
from polysci.target.machine import Machine
from polysci.target.target import Target

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
