"""Report of a compiled network: the time of each stage and of the whole, and its memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any, Final

from polysci.network.build import runner_of
from polysci.network.code import Code
from polysci.network.options import PlanOptions
from polysci.network.prepare import generate_code
from polysci.network.runner import Runner, inputs_of, order_inputs
from polysci.numerics import arrays as aligned
from polysci.program.control import BranchStage
from polysci.program.stages import (
    ConcatStage,
    LayerStage,
    Program,
    RepeatStage,
    Stage,
    ViewStage,
    members_of,
)
from polysci.runtime.measurement import PEAK_COUNTS
from polysci.space.schedule import Schedule
from polysci.text.tables import bytes_text, fit, shorten, time_text
from polysci.tune import Result
from polysci.tune.calibrate import load_rates
from polysci.tune.result import cost_text, highest_cost

WARM_UP_S: Final = 50e-3
SPENT_S: Final = 0.4
SAMPLE_S: Final = 50e-6  # of runs in a row: five hundred times the clock's resolution
RUNS: Final = (7, 500)  # at least, at most
FASTER_TURNS: Final = 5  # of both, one after the other
FASTER_BY: Final = 0.02  # of the time: within it the narrow one stays, of half the weights


@dataclass(frozen=True, slots=True)
class StageTime:
    """A stage that computes: where it stands in the program, what it is called, its median time."""

    position: int
    name: str
    seconds: float


def profile(runner: Runner, stages: Sequence[Stage]) -> tuple[StageTime, ...]:
    """Return the stages in order, timed over several runs on made-up inputs.

    ``runner`` is of code that notes the time after each of ``stages``. With several threads each
    stage ends for all of them before the next one begins.
    """
    context = runner.context()
    run = _run_of(runner, context)
    runs: list[list[float]] = []

    def run_and_note() -> None:
        run()
        runs.append(runner.stage_seconds(context, len(stages)))

    _repeat(run, WARM_UP_S)
    _repeat(run_and_note, SPENT_S)
    runner.release(context)
    return tuple(
        StageTime(at, stage.name, median(seconds[at] for seconds in runs))
        for at, stage in enumerate(stages)
        if not isinstance(stage, ViewStage | ConcatStage | BranchStage)
    )


def latency(runner: Runner) -> float:
    """Return seconds a run, the median of samples on made-up inputs; its caller's Python apart."""
    context = runner.context()
    run = _run_of(runner, context)
    seconds = _seconds_of(run)
    runner.release(context)
    return seconds


def call_latency(runner: Runner) -> float:
    """Return seconds of a call from Python, which checks inputs and makes arrays of outputs."""
    inputs = inputs_of(runner.inputs)
    argument = next(iter(inputs.values())) if len(inputs) == 1 else inputs
    return _seconds_of(partial(runner.call, argument))


def _seconds_of(run: Callable[[], object]) -> float:
    """Return the median of samples of as many runs as the clock needs, less the loop's share."""
    warm = median(_repeat(run, WARM_UP_S))
    count = max(1, round(SAMPLE_S / max(warm, 1e-9)))

    def several() -> None:
        for _ in range(count):
            run()

    def nothing() -> None:
        for _ in range(count):
            _pass()

    return (median(_repeat(several, SPENT_S)) - min(_repeat(nothing, 0.0))) / count


def _pass() -> None:
    """Return at once: the cost of a call from a loop."""


def _run_of(runner: Runner, context: Any) -> Callable[[], None]:
    """Return a function that runs the network and makes no arrays."""
    inputs = order_inputs(runner.inputs, inputs_of(runner.inputs))
    return runner.bind(context, [aligned.copy(array) for array in inputs], runner.results())


def _repeat(run: Callable[[], object], least_s: float) -> list[float]:
    """Return the seconds of each run, until they fill ``least_s``."""
    least, most = RUNS
    seconds, spent = list[float](), 0.0
    while len(seconds) < least or (spent < least_s and len(seconds) < most):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
        spent += seconds[-1]
    return seconds


def is_faster(plain: Runner, narrow: Runner) -> bool:
    """Tell whether ``plain`` takes less time a run than ``narrow`` by more than a tie.

    Of each the least of several medians counts: a neighbour on the machine can only add.
    """
    seconds: dict[str, list[float]] = {"plain": [], "narrow": []}
    for _ in range(FASTER_TURNS):
        seconds["narrow"].append(latency(narrow))
        seconds["plain"].append(latency(plain))
    return min(seconds["plain"]) < (1 - FASTER_BY) * min(seconds["narrow"])


REST: Final = "(the rest of a run)"
SKIPPED_S: Final = 1e-7  # a layer that takes less is on a branch that was not taken


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage: the nodes fused into it, the median time, its share of a run.

    ``schedule`` is empty for a loop nest, which has none, nor GFLOP/s. ``alone_seconds`` is what
    the same layers took by themselves, None where nothing was measured; ``recorded``: some of that
    comes from records of earlier searches, ``disturbed``: some of it is not to be believed.
    """

    group: str
    schedule: str
    seconds: float
    share: float
    gflops: float | None
    peak_fraction: float | None
    alone_seconds: float | None
    recorded: bool = False
    disturbed: bool = False


@dataclass(frozen=True, slots=True)
class NetworkReport:
    """A report of all stages; ``latency`` of a whole run in seconds; memory in bytes.

    ``rest`` is what a run takes beside its stages: entry, team of threads, barriers; below 0 where
    the clock, read between stages, cost more. ``call``: of a run from Python, inputs checked and
    arrays made. ``sum_of_layers``: the seconds of all layers timed alone, None where one was not.
    ``unshared`` is what the tensors of ``arena`` would take side by side. ``any_order_cost``: of
    reproducible sums, the most that one of the layers takes, over its time in any order.
    """

    name: str
    rows: tuple[StageRow, ...]
    latency: float
    call: float
    sum_of_layers: float | None
    arena: int
    unshared: int
    packed: int
    level: str
    any_order_cost: float | None = None

    def __str__(self) -> str:
        return self.text()

    @property
    def rest(self) -> float:
        """Seconds of a run beside its stages."""
        return self.latency - sum(row.seconds for row in self.rows)

    def text(self, width: int | None = None) -> str:
        """Return the table, in ``width`` columns, and the lines below it."""
        return "\n".join([_table(self, width), *self.summary()])

    def summary(self) -> list[str]:
        """Return the lines below the table."""
        flops = sum(row.gflops * row.seconds for row in self.rows if row.gflops)
        return [
            f"whole network: {time_text(self.latency)} a run, {flops / self.latency:.1f} GFLOP/s",
            f"a call from Python, which checks inputs and makes outputs: {time_text(self.call)}",
            *([PEAK_COUNTS] if any(row.peak_fraction for row in self.rows) else []),
            _beside(self),
            *_origins(self.rows),
            *_reproducible(self),
            f"tensors: {bytes_text(self.arena)} shared, {bytes_text(self.unshared)} unshared; "
            f"packed weights: {bytes_text(self.packed)}",
        ]

    def json_rows(self) -> list[dict[str, Any]]:
        """Return the members of a JSON object for each stage."""
        return [asdict(row) for row in self.rows]


def report_of(
    code: Code,
    runner: Runner,
    results: Mapping[str, Result],
    schedules: Mapping[str, Schedule],
    options: PlanOptions,
) -> NetworkReport:
    """Time the code of a network as a whole and stage by stage.

    ``results`` and ``schedules`` are by the key of a problem: what searching for a layer alone
    found, and what the code does.
    """
    facts, runner = _Facts(results, schedules, options), runner.sequence()
    program = code.placed.program
    timed = runner_of(generate_code(code.placed, schedules, code.name, options, timed=True))
    times = profile(timed, program.stages)
    total = latency(runner)
    rows = tuple(_row(facts, program.stages[time.position], time, total) for time in times)
    return NetworkReport(
        code.name, rows, total, call_latency(runner), sum_of_layers(program, results),
        code.arena.size, code.arena.unshared, code.weights_file.packed_size, options.level,
        highest_cost(results.values()),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Facts:
    """Results and schedules of layers by the key of their problem, and how they were compiled."""

    results: Mapping[str, Result]
    schedules: Mapping[str, Schedule]
    options: PlanOptions


def sum_of_layers(program: Program, results: Mapping[str, Result]) -> float | None:
    """Return seconds of all layers timed alone; None where one was not timed."""
    layers = [_alone(results, layer, stage) for stage in program.stages for layer in _layers(stage)]
    timed = [seconds for seconds in layers if seconds is not None]
    return sum(timed) if layers and len(timed) == len(layers) else None


def _row(facts: _Facts, stage: Stage, time: StageTime, total: float) -> StageRow:
    share = time.seconds / total
    layers = _layers(stage)
    if not layers:
        return StageRow(time.name, "", time.seconds, share, None, None, None)
    flops = sum(layer.problem.flops * _times(layer, stage) for layer in layers)
    speed = flops / time.seconds * 1e-9 if time.seconds > SKIPPED_S else None
    best = _peak(facts.options, facts.results[layers[0].problem.key])
    needed = sum(layer.problem.multiplied_flops * _times(layer, stage) for layer in layers)
    part = needed / time.seconds * 1e-9 / best if speed and best else None
    by_layer = [_alone(facts.results, layer, stage) for layer in layers]
    alone = [seconds for seconds in by_layer if seconds is not None]
    schedules = " | ".join(str(facts.schedules[layer.problem.key]) for layer in layers)
    whole = sum(alone) if len(alone) == len(by_layer) else None
    taken = [facts.results[layer.problem.key].measurement for layer in layers]
    recorded = any(measurement.recorded for measurement in taken if measurement)
    disturbed = any(measurement.disturbed for measurement in taken if measurement)
    return StageRow(
        time.name, schedules, time.seconds, share, speed, part, whole, recorded, disturbed
    )


def _layers(stage: Stage) -> list[LayerStage]:
    return [member for member in members_of(stage) if isinstance(member, LayerStage)]


def _times(layer: LayerStage, stage: Stage) -> int:
    """Return how often a run computes a layer of a stage; once a loop that data ends."""
    steps = stage.count if isinstance(stage, RepeatStage) and not stage.breaks else 1
    return steps * (len(layer.stack) or 1)


def _alone(results: Mapping[str, Result], layer: LayerStage, stage: Stage) -> float | None:
    measured = results[layer.problem.key].measurement
    return measured.median * _times(layer, stage) if measured else None


def _peak(options: PlanOptions, result: Result) -> float | None:
    """Return GFLOP/s of all threads: measured beside the layer, else known of the machine."""
    if result.measurement and result.measurement.peak_gflops:
        return result.measurement.peak_gflops
    machine = load_rates(options.target) if result.problem.dtype == "f32" else None
    return machine.peak * options.threads if machine else None


def _beside(report: NetworkReport) -> str:
    if report.sum_of_layers is None:
        return f"its layers timed alone: not measured at level {report.level}"
    share = report.latency / report.sum_of_layers
    return (
        f"its layers timed alone: {time_text(report.sum_of_layers)} in all; "
        f"the network takes {share:.2f} of that"
    )


def _reproducible(report: NetworkReport) -> list[str]:
    cost = report.any_order_cost
    return [cost_text(cost)] if cost else []


def _origins(rows: Sequence[StageRow]) -> list[str]:
    """Return how many stages' layers were timed by earlier searches, or beside other work."""
    texts = {"from records": "recorded", "disturbed": "disturbed"}
    counts = {text: sum(getattr(row, name) for row in rows) for text, name in texts.items()}
    remarks = ", ".join(f"{count} {text}" for text, count in counts.items() if count)
    layers = sum(row.alone_seconds is not None for row in rows)
    return [f"of the layers of {layers} stages, timed alone: {remarks}"] if remarks else []


def _table(report: NetworkReport, width: int | None) -> str:
    head = ("group", "schedule", "time", "share", "GFLOP/s", "% of peak")
    lines: list[tuple[str, ...]] = [head]
    for row in report.rows:
        lines.append((
            shorten(row.group), row.schedule or "loops", time_text(row.seconds),
            f"{100 * row.share:.1f} %",
            "-" if row.gflops is None else f"{row.gflops:.1f}",
            "-" if row.peak_fraction is None else f"{100 * row.peak_fraction:.0f}",
        ))  # fmt: skip
    share = f"{100 * report.rest / report.latency:.1f} %"
    lines.append((REST, "", time_text(report.rest), share, "-", "-"))
    return fit(lines, width, drop=("share",), clip=("schedule", "group"), left=head[:2])
