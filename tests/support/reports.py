"""Reports of searches that never ran, for the tests of the page."""

from dataclasses import replace
from typing import Any

from polysci.cost import Context
from polysci.cost.shortlist import choices
from polysci.ops import parse_problem
from polysci.report import Report
from polysci.report.model import ReportLayer
from polysci.runtime.measurement import Measurement
from polysci.target.machine import assume_rates
from polysci.tune import Result, Trial, emit
from tests.support import samples


def result_of(text: str, count: int, **quality: Any) -> tuple[Result, Context]:
    """A search that took the model's first choice; everything takes twice what was predicted.

    ``quality`` are fields of its measurement.
    """
    problem = parse_problem(text, "nhwc")
    context = samples.fixed_context(problem)
    ranked = choices(context, count)
    trials = tuple(Trial(choice.schedule, choice.seconds, 2 * choice.seconds) for choice in ranked)
    plan, seconds = trials[0].schedule, trials[0].seconds or 0.0
    measured = Measurement((seconds,), problem.flops, str(plan), "made up", 1, "here", 96.0)
    measured = replace(measured, **quality)
    result = Result(problem, plan, emit(problem, plan), trials[0].predicted, measured, trials, 1.5,
                    "measure", 1)  # fmt: skip
    return result, context


def report_of(*layers: ReportLayer, planned: int | None = None) -> Report:
    """A page's data: these layers on a fixed machine."""
    target = samples.FIXED
    return Report("net", layers, planned or len(layers), target, assume_rates(target), 1, "measure",
                  "2025-01-31 12:00", "0")  # fmt: skip
