"""How long each stage of a network takes in a run of all of them, and which of two is faster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Final

from polysci.network.example_inputs import inputs_of
from polysci.network.runner import Runner, order_inputs
from polysci.numerics import arrays as aligned
from polysci.program.control import BranchStage
from polysci.program.stages import ConcatStage, Stage, ViewStage

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
    """The stages in order, timed over several runs on made-up inputs.

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
    """Seconds a run, the median of several samples on made-up inputs; its caller's Python apart."""
    context = runner.context()
    run = _run_of(runner, context)
    seconds = _seconds_of(run)
    runner.release(context)
    return seconds


def call_latency(runner: Runner) -> float:
    """The same with what a call from Python adds: inputs checked, arrays made for the outputs."""
    inputs = inputs_of(runner.inputs)
    argument = next(iter(inputs.values())) if len(inputs) == 1 else inputs
    return _seconds_of(partial(runner.call, argument))


def _seconds_of(run: Callable[[], object]) -> float:
    """The median of samples of as many runs in a row as the clock needs, less the loop's share."""
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
    """A call from a loop, and no more."""


def _run_of(runner: Runner, context: Any) -> Callable[[], None]:
    """A run that makes no arrays."""
    inputs = order_inputs(runner.inputs, inputs_of(runner.inputs))
    return runner.bind(context, [aligned.copy(array) for array in inputs], runner.results())


def _repeat(run: Callable[[], object], least_s: float) -> list[float]:
    """The seconds of each run, until they fill ``least_s``."""
    least, most = RUNS
    seconds, spent = list[float](), 0.0
    while len(seconds) < least or (spent < least_s and len(seconds) < most):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
        spent += seconds[-1]
    return seconds


def is_faster(plain: Runner, narrow: Runner) -> bool:
    """Whether ``plain`` takes less time a run than ``narrow`` by more than a tie.

    Of each the least of several medians counts: a neighbour on the machine can only add.
    """
    seconds: dict[str, list[float]] = {"plain": [], "narrow": []}
    for _ in range(FASTER_TURNS):
        seconds["narrow"].append(latency(narrow))
        seconds["plain"].append(latency(plain))
    return min(seconds["plain"]) < (1 - FASTER_BY) * min(seconds["narrow"])
