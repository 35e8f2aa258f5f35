"""Schedules compared where they will run: weights come from memory, tensors from the last layer.

Alone, a layer finds its weights and its input in the caches from the call before. In a network it
does not, and another order of loops may win. So the best few of every layer, ``rivals``, are timed
once more, all layers at once, in networks that time their stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from polysci.errors import PolysciError
from polysci.lower.choice import candidates, key_of, other_form
from polysci.lower.layer_calls import refuse_code, refuse_schedule
from polysci.network.build import runner_of
from polysci.network.code import Code
from polysci.network.example_inputs import inputs_of
from polysci.network.options import PlanOptions
from polysci.network.prepare import PreparedNetwork, generate_code, options_of
from polysci.ops.problem import Problem
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.row import PassWatch
from polysci.program.passes.row_fusion import Setting, fuse_rows
from polysci.program.passes.table import ScheduleContext, run_scheduled_passes
from polysci.program.stages import LayerStage, RepeatStage, RowFusion, members_of, problems
from polysci.runtime.measurement import host_of
from polysci.space.schedule import Schedule, parse
from polysci.space.summation import SummationOrder
from polysci.tune import LEVELS, Result, context_of
from polysci.tune.wisdom import Record, Wisdom

TIE: Final = 0.01  # of the time: within it the schedule that was best alone stays
RUNS: Final = 9
WARM_UP: Final = 2  # runs
ROUNDS: Final = 7  # schedules of each layer
KINDS: Final = 3  # of them the fastest of an algorithm or a kernel
FIRST: Final = 2  # of them what the model prefers with weights from memory, measured or not
NEAR: Final = 1.15  # of the least time alone: others of a kind that are slower are not tried
LIKELY: Final = 1.4  # of the least time alone: slower kinds do not win


def retune(
    prepared: PreparedNetwork,
    results: Mapping[str, Result],
    options: PlanOptions,
    name: str,
    wisdom: Wisdom | None = None,
) -> tuple[PreparedNetwork, dict[str, Schedule]]:
    """The network with row fusions and joint loops, and the schedule of every problem, by key.

    At a level that measures, both are timed in the whole network; else the model decides.
    """
    chosen = {key: result.schedule for key, result in results.items()}
    measures = LEVELS[options.level].measured != 0 and bool(chosen) and not options.machine
    if measures:
        chosen = in_place(prepared.placed, results, options, name, wisdom)
    seconds = {key: result.predicted for key, result in results.items()}
    slower = dict[str, str]()
    if measures:
        setting = Setting(chosen, seconds, options.target, options.rates, refuse_code)
        placed, _ = fuse_rows(prepared.placed, setting)
        slower = slower_fusions(prepared.placed, placed, chosen, options, name)
    return fuse_with_schedules(prepared, chosen, seconds, options, slower), chosen


def fuse_with_schedules(
    prepared: PreparedNetwork,
    chosen: Mapping[str, Schedule],
    seconds: Mapping[str, float],
    options: PlanOptions,
    refused: Mapping[str, str],
    watch: PassWatch | None = None,
) -> PreparedNetwork:
    """The network after the passes that need its layers' schedules and predicted seconds.

    ``refused`` are reasons, by tensor, why it is not to lie inside a row fusion.
    """
    setting = Setting(chosen, seconds, options.target, options.rates, refuse_code)
    context = ScheduleContext(setting, refused)
    placed, considered = run_scheduled_passes(prepared.placed, context, watch)
    return replace(prepared, placed=placed, fusions=(*prepared.fusions, *considered))


def in_place(
    placed: PlacedProgram,
    results: Mapping[str, Result],
    options: PlanOptions,
    name: str,
    wisdom: Wisdom | None = None,
) -> dict[str, Schedule]:
    """The schedule of every problem, by key, that takes least time in the whole network."""
    known = wisdom if wisdom is not None else Wisdom()
    wanted = options_of(placed.program, options)
    tried = {
        key: [
            schedule for schedule in rivals(problem, results[key], wanted[key], known)
            if not refuse_schedule(key, schedule, placed)
        ]
        for key, problem in problems(placed.program).items()
    }  # fmt: skip
    rounds = max((len(schedules) for schedules in tried.values()), default=1)
    spent: dict[str, list[float]] = {key: [] for key in tried}
    for number in range(rounds):
        chosen = {
            key: schedules[min(number, len(schedules) - 1)] for key, schedules in tried.items()
        }
        code = generate_code(placed, chosen, name, options, timed=True)
        times = _by_problem(code)
        for key in tried:
            spent[key].append(times[key])
    return {key: schedules[_best(spent[key][: len(schedules)])] for key, schedules in tried.items()}


def slower_fusions(
    apart: PlacedProgram,
    fused: PlacedProgram,
    chosen: Mapping[str, Schedule],
    options: PlanOptions,
    name: str,
) -> dict[str, str]:
    """Why row fusions slower than their members apart are refused, by internal tensor."""
    if not any(isinstance(stage, RowFusion) for stage in fused.program.stages):
        return {}
    times = []
    for placed in (apart, fused):
        code = generate_code(placed, chosen, name, options, timed=True)
        runs = seconds_of(code, RUNS)
        seconds = [sorted(run[at] for run in runs)[1] for at in range(len(runs[0]))]
        stages = zip(placed.program.stages, seconds, strict=True)
        times.append({name: spent for stage, spent in stages for name in stage.outputs})
    reasons: dict[str, str] = {}
    for stage in fused.program.stages:
        if not isinstance(stage, RowFusion):
            continue
        alone = sum(times[0][member.output] for member in stage.members)
        together = times[1][stage.output]
        if together > alone:
            reason = f"measured {together * 1e6:.0f} us together, {alone * 1e6:.0f} us apart"
            reasons |= dict.fromkeys(stage.internal, reason)
    return reasons


def _best(seconds: Sequence[float]) -> int:
    """The first one unless another is faster by more than a tie."""
    least = int(np.argmin(seconds))
    return least if seconds[least] < seconds[0] * (1 - TIE) else 0


def _by_problem(code: Code) -> dict[str, float]:
    """Seconds a run of all stages of each problem."""
    runs = seconds_of(code, RUNS)
    seconds: dict[str, float] = {}
    for at, stage in enumerate(code.placed.program.stages):
        if isinstance(stage, LayerStage | RepeatStage):
            least = sorted(run[at] for run in runs)[1]  # the second best: a neighbour can only add
            layers = [part for part in members_of(stage) if isinstance(part, LayerStage)]
            for key in dict.fromkeys(layer.problem.key for layer in layers):
                seconds[key] = seconds.get(key, 0.0) + least
    return seconds


def seconds_of(code: Code, runs: int) -> list[list[float]]:
    """Seconds of every stage in each of some runs; the code must time itself."""
    runner = runner_of(code)
    inputs = inputs_of(runner.inputs)
    arrays = [inputs[port.name] for port in runner.inputs]
    context, count = runner.context(), len(code.placed.program.stages)
    run = runner.bind(context, arrays, runner.results())
    seconds = []
    for _ in range(runs + WARM_UP):
        run()
        seconds.append(runner.stage_seconds(context, count))
    return seconds[WARM_UP:]


def rivals(
    problem: Problem, result: Result, options: PlanOptions, wisdom: Wisdom
) -> list[Schedule]:
    """Up to ``ROUNDS`` schedules; the winner alone is the first."""
    distinct: dict[str, Schedule] = {}
    for schedule in _likely(problem, result, options, wisdom):
        distinct.setdefault(str(schedule), schedule)
        if len(distinct) == ROUNDS:
            break
    return list(distinct.values())


def _likely(
    problem: Problem, result: Result, options: PlanOptions, wisdom: Wisdom
) -> Iterator[Schedule]:
    """The winner alone, its other form, the fastest measured of each kind, others, the model's."""
    yield result.schedule
    context = context_of(problem, options.threads, options.target)
    with suppress(PolysciError):
        if other := other_form(problem, context, result.schedule):
            yield other
    records = _records(problem, options, wisdom)
    kinds = dict[tuple[str, str], Record]()
    for record in records:
        schedule = parse(record.schedule)
        kinds.setdefault((str(schedule.transform), schedule.kernel), record)
    fastest = [record for record in kinds.values() if record.seconds <= LIKELY * records[0].seconds]
    near = [record for record in records if record.seconds <= NEAR * records[0].seconds]
    kept = SummationOrder.of(context.contraction, result.schedule)
    order = kept if options.reproducible else None
    cold = candidates(problem, replace(context, cold=True), ROUNDS, options.algorithm, order=order)
    preferred = [choice.schedule for choice in cold if choice.seconds <= NEAR * cold[0].seconds]
    yield from (parse(record.schedule) for record in fastest[:KINDS])
    yield from preferred[:FIRST]
    yield from (parse(record.schedule) for record in near)
    yield from preferred[FIRST:]


def _records(problem: Problem, options: PlanOptions, wisdom: Wisdom) -> list[Record]:
    """What was measured of a problem, the fastest first."""
    key = key_of(problem, options.algorithm, reproducible=options.reproducible)
    with suppress(PolysciError):
        own = wisdom.measurements(host_of(options.target), threads=options.threads, problem_key=key)
        return sorted(own, key=lambda record: (record.seconds, record.schedule))
    return []
