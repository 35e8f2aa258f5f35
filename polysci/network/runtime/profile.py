"""How long each stage of a network takes in a run of all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np

from polysci.network.ir.stages import LayerStage, LoopStage, RepeatStage, RowFusion, Stage
from polysci.network.runtime.example_inputs import inputs_of
from polysci.network.runtime.runner import Runner, order_inputs
from polysci.numerics import arrays as aligned

WARM_UP_S: Final = 50e-3
SPENT_S: Final = 0.4
RUNS: Final = (7, 500)  # at least, at most


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
        if isinstance(stage, LayerStage | LoopStage | RowFusion | RepeatStage)
    )


def latency(runner: Runner) -> float:
    """Seconds a run, the median of several in a row on made-up inputs."""
    context = runner.context()
    run = _run_of(runner, context)
    _repeat(run, WARM_UP_S)
    seconds = median(_repeat(run, SPENT_S))
    runner.release(context)
    return seconds


def _run_of(runner: Runner, context: Any) -> Callable[[], None]:
    """A run that makes no arrays."""
    inputs = order_inputs(runner.inputs, inputs_of(runner.inputs))
    arrays = [aligned.copy(array) for array in inputs]
    results = [aligned.empty(port.shape, dtype=np.dtype(port.dtype)) for port in runner.outputs]
    return lambda: runner.run_in(context, arrays, results)


def _repeat(run: Callable[[], None], least_s: float) -> list[float]:
    """The seconds of each run, until they fill ``least_s``."""
    least, most = RUNS
    seconds, spent = list[float](), 0.0
    while len(seconds) < least or (spent < least_s and len(seconds) < most):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
        spent += seconds[-1]
    return seconds
