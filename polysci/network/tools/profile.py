"""How long each stage of a network takes in a run of all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np

from polysci.network.compile.compiled import Network, rebuild_network
from polysci.network.ir.stages import LayerStage, LoopStage, RowFusion
from polysci.network.runtime.example_inputs import inputs_of
from polysci.network.runtime.runner import order_inputs
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


def profile(network: Network) -> tuple[StageTime, ...]:
    """The stages in order, timed over several runs on made-up inputs by code that notes the time.

    With several threads each stage ends for all of them before the next one begins.
    """
    timed = rebuild_network(network, timed=True)
    runner, stages = timed.runner, timed.code.placed.program.stages
    times = getattr(runner.library.lib, f"{timed.name}_times")
    context = runner.context()
    run = _run_of(timed, context)
    spans: list[list[float]] = []

    def run_and_note() -> None:
        run()
        spans.append(np.diff(runner.library.ffi.unpack(times(context), len(stages) + 1)).tolist())

    _repeat(run, WARM_UP_S)
    _repeat(run_and_note, SPENT_S)
    runner.release(context)
    return tuple(
        StageTime(at, stage.name, median(each[at] for each in spans))
        for at, stage in enumerate(stages)
        if isinstance(stage, LayerStage | LoopStage | RowFusion)
    )


def latency(network: Network) -> float:
    """Seconds a run, the median of several in a row on made-up inputs."""
    context = network.runner.context()
    run = _run_of(network, context)
    _repeat(run, WARM_UP_S)
    found = median(_repeat(run, SPENT_S))
    network.runner.release(context)
    return found


def _run_of(network: Network, context: Any) -> Callable[[], None]:
    """A run that makes no arrays."""
    runner = network.runner
    arrays = [aligned.copy(one) for one in order_inputs(runner.inputs, inputs_of(runner.inputs))]
    results = [aligned.empty(one.shape, dtype=np.dtype(one.dtype)) for one in runner.outputs]
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
