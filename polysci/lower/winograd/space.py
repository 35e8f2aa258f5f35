"""Which Winograd schedules to consider, best predicted first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from polysci.cost import Context
from polysci.lower.algorithm import Candidate
from polysci.lower.winograd.cost import estimate, exceeds_l2
from polysci.lower.winograd.plan import resolve
from polysci.lower.winograd.rules import SIZES, convolution
from polysci.ops.problem import Problem
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives import Ahead
from polysci.space.enumerate import even_splits
from polysci.space.schedule import Schedule, Transform
from polysci.target import microkernels

BLOCKS = (1, 2, 3, 4, 6, 8, 16)  # of tiles, in register tiles
PANELS = (1, 2, 4, 8)  # of filters
ALIKE = 4  # at most a fourth of the choices may share tile and kernel


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
