"""The data of a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

import numpy as np

from polysci.cost import Context
from polysci.cost.metrics import tau
from polysci.cost.shortlist import predict_seconds
from polysci.errors import PolysciError
from polysci.explain import Explanation, MeasuredTime
from polysci.explain.roofline import bandwidths, peak_name
from polysci.lower.algorithm import ExplainRequest
from polysci.lower.registry import algorithm_of
from polysci.ops.problem import Problem
from polysci.space import schedule
from polysci.target.machine import Machine
from polysci.target.target import Target
from polysci.tune import Result, Trial

LEAST_TRIALS = 3  # for a rank correlation


@dataclass(frozen=True, slots=True)
class ReportLayer:
    """One layer: its result and the model's account of it, or the error in ``fault``.

    ``trials`` are the schedules with both a predicted and a measured time, each once.
    """

    title: str
    problem: Problem
    result: Result | None = None
    fault: str = ""
    account: Explanation | None = None
    trials: tuple[Trial, ...] = ()

    @property
    def measured(self) -> MeasuredTime | None:
        """Median of the measured times of one call, and what to know of it."""
        return measured_time(self.result) if self.result else None

    @property
    def seconds(self) -> float | None:
        """The measured time of one call."""
        return self.measured.seconds if self.measured else None

    @property
    def tau(self) -> float | None:
        """Kendall's tau-b between predicted and measured times; None for too few trials."""
        if len(self.trials) < LEAST_TRIALS:
            return None
        times = [(trial.predicted, trial.seconds) for trial in self.trials]
        costs, seconds = (np.array(column, dtype=np.float64) for column in zip(*times, strict=True))
        return tau(costs, seconds)


@dataclass(frozen=True, slots=True)
class Report:
    """A network on a machine. ``date`` is text; ``planned`` counts the requested layers."""

    title: str
    layers: tuple[ReportLayer, ...]
    planned: int
    target: Target
    machine: Machine
    threads: int
    level: str
    date: str
    version: str

    @property
    def peak(self) -> float:
        """Peak of all threads in GFLOP/s for the first layer's types of input."""
        own = next((layer.account for layer in self.layers if layer.account), None)
        return own.peak if own else self.machine.peak * self.threads

    @property
    def peak_name(self) -> str:
        own = next((layer.account for layer in self.layers if layer.account), None)
        return own.peak_name if own else peak_name("f32")

    @property
    def bandwidths(self) -> dict[str, float]:
        """GB/s of L2, L3 and memory, by name, for all threads together."""
        return bandwidths(self.machine, self.target, self.threads)

    @property
    def good(self) -> tuple[ReportLayer, ...]:
        return tuple(layer for layer in self.layers if layer.result)

    @property
    def timed(self) -> tuple[ReportLayer, ...]:
        return tuple(layer for layer in self.layers if layer.seconds)

    @property
    def network_seconds(self) -> float | None:
        """Measured time of all timed layers, weighted by multiplicity."""
        timed = self.timed
        total = sum(layer.problem.multiplicity * (layer.seconds or 0.0) for layer in timed)
        return total if timed else None

    @property
    def predicted_seconds(self) -> float:
        """Predicted time of all layers that have a schedule, weighted by multiplicity."""
        return sum(x.problem.multiplicity * x.result.predicted for x in self.good if x.result)

    @property
    def network_gflops(self) -> float | None:
        seconds = self.network_seconds
        flops = sum(layer.problem.multiplicity * layer.problem.flops for layer in self.timed)
        return flops / seconds * 1e-9 if seconds else None

    @property
    def peak_share(self) -> float | None:
        """Return the share of the peak, over all timed layers; taps in the padding are left out."""
        seconds = self.network_seconds
        needed = sum(x.problem.multiplicity * x.problem.multiplied_flops for x in self.timed)
        return needed / seconds * 1e-9 / self.peak if seconds else None

    @property
    def spent(self) -> float:
        """Seconds of search."""
        return sum(layer.result.spent for layer in self.good if layer.result)

    @property
    def bias(self) -> float | None:
        """Geometric mean of predicted over measured time; None where nothing was measured."""
        ratios = [
            layer.result.predicted / layer.seconds
            for layer in self.timed
            if layer.result and layer.seconds
        ]
        return geometric_mean(ratios) if ratios else None

    @property
    def median_tau(self) -> float | None:
        taus = [layer.tau for layer in self.layers if layer.tau is not None]
        return float(np.median(taus)) if taus else None


def layer_of(
    title: str,
    problem: Problem,
    result: Result | None,
    fault: str,
    context: Context | None,
    recorded: Mapping[str, float],
) -> ReportLayer:
    """A layer of a report; it has no account without ``context``.

    ``recorded`` are earlier measured seconds by schedule text.
    """
    if result is None or context is None:
        return ReportLayer(title, problem, result, fault)
    request = ExplainRequest(
        title, problem, result.schedule, context, result.level, measured_time(result), ranker=None
    )
    try:
        nest = algorithm_of(result.schedule).explain(request).nest
    except PolysciError as error:  # a schedule that the model cannot count still has its times
        return ReportLayer(title, problem, result, fault=str(error))
    points = trial_points(context, result, recorded if nest else {})
    return ReportLayer(title, problem, result, "", nest, points)


def measured_time(result: Result) -> MeasuredTime | None:
    """The median of a result's measurement, and what to know of it."""
    taken = result.measurement
    if taken is None:
        return None
    return MeasuredTime(taken.median, taken.recorded, taken.dropped, taken.speed, taken.disturbed)


def trial_points(
    context: Context, result: Result, recorded: Mapping[str, float]
) -> tuple[Trial, ...]:
    """Every schedule with a measured time: this search's first, then those of earlier searches."""
    measured = result.measurement
    own = [Trial(result.schedule, result.predicted, measured.median)] if measured else []
    first: dict[str, Trial] = {}
    for trial in (*own, *(trial for trial in result.trials if trial.seconds)):
        first.setdefault(str(trial.schedule), trial)
    for text, seconds in recorded.items():
        earlier = None if text in first else _predict(context, text, seconds)
        if earlier:
            first[text] = earlier
    return tuple(first.values())


def _predict(context: Context, text: str, seconds: float) -> Trial | None:
    """A recorded time with the model's prediction; None where the schedule no longer parses."""
    try:
        recorded = schedule.parse(text)
        recorded.check({d.name: d.extent for d in context.contraction.dims})
        return Trial(recorded, predict_seconds(context, recorded), seconds)
    except PolysciError:
        return None


def shape_text(problem: Problem) -> str:
    """Shapes of input, weights and output: ``1x3x224x224 * 64x3x7x7 -> 1x64x112x112``."""
    shapes: Iterable[Sequence[int]] = (problem.x_shape, problem.w_shape, problem.y_shape)
    x, w, y = ("×".join(map(str, shape)) for shape in shapes)
    return f"{x} ∗ {w} → {y}"
