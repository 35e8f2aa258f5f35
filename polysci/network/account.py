"""Account of a compiled network: what each stage computes and moves, and how real runs went."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from polysci.loop_ir.expressions import Apply, Expr, Load, Reduce, children
from polysci.network.build import runner_of
from polysci.network.compiled import Network
from polysci.network.prepare import generate_code, shares_of
from polysci.network.report import NetworkReport
from polysci.network.runner import Runner
from polysci.numerics.scalar_functions import CONVERSIONS
from polysci.program.control import BranchStage
from polysci.program.passes.arena import lives
from polysci.program.passes.row import Fusion
from polysci.program.passes.thread_shares import ThreadShares
from polysci.program.stages import (
    JointLoops,
    LayerStage,
    LoopStage,
    Program,
    RepeatStage,
    RoutineStage,
    RowFusion,
    Stage,
    UpdateStage,
    Value,
    members_of,
)
from polysci.tune import context_of

RUNS: Final = 8  # that are kept, of each stage's times
WARM_UP: Final = 3
UNCONSIDERED: Final = "no pass joins these two"
KINDS: Final = {
    LayerStage: "layer", LoopStage: "loops", JointLoops: "loops", UpdateStage: "updates",
    RoutineStage: "routine", RowFusion: "bands of rows", RepeatStage: "steps",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StageAccount:
    """A stage: its median seconds, floating point operations, and bytes of what it touches.

    ``flops`` of loops count every function of an element once; None where nobody counts them. Of
    these, ``multiplied`` are not of taps in the padding.
    ``read``, ``written`` and ``weights``: each tensor once. ``threads`` compute it. ``converts``
    says what a copy changes. ``peak`` is in GFLOP/s, that of ``compute`` on all threads.
    """

    position: int
    name: str
    kind: str
    seconds: float
    flops: int | None
    multiplied: int | None
    read: int
    written: int
    weights: int
    threads: int
    schedule: str
    result: str
    converts: str
    compute: str
    peak: float

    @property
    def bytes(self) -> int:
        return self.read + self.written + self.weights


@dataclass(frozen=True, slots=True)
class BufferAccount:
    """A buffer of the arena: its place, and the first and the last stage that use it."""

    name: str
    offset: int
    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class StageRun:
    """Seconds from the first run's beginning at which each stage of a run began and ended."""

    marks: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A stage that reads what another one makes, and why they are not one."""

    first: int
    second: int
    tensor: str
    bytes: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NetworkAccount:
    """A network: stages in order, buffers, fusions, and some runs one after the other."""

    network: Network
    report: NetworkReport
    stages: tuple[StageAccount, ...]
    buffers: tuple[BufferAccount, ...]
    fusions: tuple[Fusion, ...]
    apart: tuple[Neighbours, ...]
    runs: tuple[StageRun, ...]

    def live(self, position: int) -> int:
        """Return bytes of the arena in use while a stage runs."""
        return sum(b.size for b in self.buffers if b.first <= position <= b.last)


def account_of(network: Network) -> NetworkAccount:
    """Time the network, run its timed code some times, and count what its stages do."""
    report, options = network.report(), network.options
    timed = generate_code(
        network.code.placed, network.schedules, network.code.name, options, timed=True
    )
    program, shares = timed.placed.program, shares_of(timed.placed.program, options)
    runs = time_stages(runner_of(timed), len(program.stages))
    rows = iter(report.rows)
    stages = []
    for at, stage in enumerate(program.stages):
        row = None if isinstance(stage, BranchStage) else next(rows)
        seconds = float(np.median([run.marks[at + 1] - run.marks[at] for run in runs]))
        stages.append(_stage(
            program, at, stage, row.seconds if row else seconds, _threads(shares, at, network),
            row.schedule if row else "", *_peak(network, stage),
        ))  # fmt: skip
    return NetworkAccount(
        network, report, tuple(stages), tuple(_buffers(network)), network.prepared.fusions,
        tuple(_apart(program, network.prepared.fusions)), tuple(runs),
    )  # fmt: skip


def time_stages(runner: Runner, stages: int) -> list[StageRun]:
    """Run code that times itself some times, after a few to warm up."""
    runs = runner.time_stages(stages, RUNS, WARM_UP)
    return [StageRun(tuple(mark - runs[0][0] for mark in marks)) for marks in runs]


def _threads(shares: ThreadShares, position: int, network: Network) -> int:
    return 1 if shares.serial(position) else network.threads


def _peak(network: Network, stage: Stage) -> tuple[str, float]:
    """Return how its layers multiply at best, and that peak of all threads; else that of FMAs."""
    options, threads = network.options, network.threads
    layers = [member for member in members_of(stage) if isinstance(member, LayerStage)]
    if not layers:
        return "f32", options.rates.peak * threads
    context = context_of(layers[0].problem, threads, options.target, machine=options.machine)
    return context.compute, context.peak * threads


def _stage(
    program: Program, at: int, stage: Stage, seconds: float, threads: int, schedule: str,
    compute: str, peak: float,
) -> StageAccount:  # fmt: skip
    constants = {name for name in stage.inputs if name in program.constants}
    kind = stage.part if isinstance(stage, BranchStage) else KINDS[type(stage)]
    value = program.values.get(stage.outputs[0]) if stage.outputs else None
    converts = _converts(program, stage)
    return StageAccount(
        at, stage.name, "copy" if converts else kind, seconds, flops_of(program, stage),
        flops_of(program, stage, padding=False),
        _bytes(program, {*stage.inputs} - constants), _bytes(program, {*stage.outputs}),
        sum(program.constants[name].nbytes for name in constants), threads, schedule,
        layout_text(value) if value else "", converts, compute, peak,
    )  # fmt: skip


def _bytes(program: Program, names: Iterable[str]) -> int:
    return sum(program.values[name].bytes for name in names if name in program.values)


def layout_text(value: Value) -> str:
    """Return type, shape and, if it is another one, the order in which axes lie in memory."""
    plain = not value.order or [*value.order] == sorted(value.order)
    order = "" if plain else f", axes {' '.join(map(str, value.order))}"
    return f"{value.dtype} {'×'.join(map(str, value.shape)) or 'one number'}{order}"


def _converts(program: Program, stage: Stage) -> str:
    """Name what a loop that only moves elements makes of them; empty for other stages."""
    if not isinstance(stage, LoopStage):
        return ""
    expr: Expr = stage.expr
    while isinstance(expr, Apply) and expr.function in CONVERSIONS.values():
        expr = expr.arguments[0]
    if not isinstance(expr, Load) or expr.tensor not in program.values:
        return ""
    before, after = program.values[expr.tensor], program.values[stage.output]
    return f"{layout_text(before)} → {layout_text(after)}"


def flops_of(program: Program, stage: Stage, *, padding: bool = True) -> int | None:
    """Return floating point operations of a run of a stage; None for routines and branches.

    Those of taps in the padding are among them, unless ``padding`` is False.
    """
    match stage:
        case LayerStage():
            flops = stage.problem.flops if padding else stage.problem.multiplied_flops
            return flops * (len(stage.stack) or 1)
        case LoopStage():
            return program.values[stage.output].size * operations(stage.expr)
        case UpdateStage():
            return prod(stage.extents) * (1 + operations(stage.expr))
        case JointLoops() | RowFusion():
            return _sum(flops_of(program, member, padding=padding) for member in members_of(stage))
        case RepeatStage():
            inside = stage.as_program(program)
            once = _sum(flops_of(inside, member, padding=padding) for member in members_of(stage))
            return None if once is None else once * stage.count
    return None


def _sum(counts: Iterable[int | None]) -> int | None:
    listed = [*counts]
    return None if None in listed else sum(count for count in listed if count)


def operations(expr: Expr) -> int:
    """Count the functions of an element of an expression; conversions are none."""
    match expr:
        case Reduce():
            return prod(extent for _, extent in expr.over) * (1 + operations(expr.body))
        case Apply():
            own = expr.function not in CONVERSIONS.values()
            return int(own) + sum(map(operations, expr.arguments))
    return sum(map(operations, children(expr)))


def _buffers(network: Network) -> Iterator[BufferAccount]:
    """Yield tensors, then what layers need besides, which lives for a stage."""
    code, program = network.code, network.code.placed.program
    alive = lives(code.placed, frozenset({*program.inputs, *program.outputs, *program.constants}))
    for name, offset in code.arena.offsets.items():
        if life := alive.get(name):
            size = max(1, program.values[name].bytes)
            yield BufferAccount(name, offset, size, life.first, life.last)


def _apart(program: Program, fusions: Iterable[Fusion]) -> Iterator[Neighbours]:
    """Yield stages beside those that read their results, and why passes left them apart."""
    refusals: dict[str, dict[str, None]] = {}
    for fusion in fusions:
        if not fusion.done:
            refusals.setdefault(fusion.tensor, {})[fusion.refusal] = None
    makers: Mapping[str, int] = {
        name: at for at, stage in enumerate(program.stages) for name in stage.outputs
    }
    for at, stage in enumerate(program.stages):
        for name in dict.fromkeys(stage.inputs):
            maker = makers.get(name)
            if maker is not None and maker != at and name in program.values:
                reasons = tuple(refusals.get(name, {UNCONSIDERED: None}))
                yield Neighbours(maker, at, name, 2 * program.values[name].bytes, reasons)
