"""A third algorithm, for tests: direct loops for 1x1 convolutions, named by a transform.

Its rules are stricter than those of direct loops, so that a test sees whose rules were taken:
weights are doubled and inputs at most 1 in exact mode, and its error bound has one more rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from polysci.cost import Context
from polysci.errors import UnsupportedError
from polysci.explain import Explanation
from polysci.lower.algorithm import (
    Algorithm,
    Candidate,
    EmitOptions,
    ErrorTerms,
    ExactInputs,
    ExplainRequest,
    SpaceLimits,
)
from polysci.lower.direct.algorithm import Direct, LegalSchedule
from polysci.lower.lowering import LoweredPrimitive
from polysci.numerics.arrays import Doubles
from polysci.ops.convolutions import Conv2d
from polysci.ops.problem import Problem
from polysci.space.schedule import Schedule, Transform

WORD = Transform("pointwise")
DIRECT = Direct()


@dataclass(frozen=True, slots=True)
class PointwiseExplanation:
    """What is told of direct loops, under another heading."""

    request: ExplainRequest
    nest: Explanation | None = None

    def render(self, width: int | None = None) -> str:
        return f"{self.request.title}\n\nPointwise\n  {self.request.schedule}\n"

    def members(self) -> dict[str, Any]:
        return {"schedule": str(self.request.schedule), "measured": self.request.measured}


class Pointwise(Algorithm[LegalSchedule]):
    """``pointwise()`` and then the loops of direct convolution."""

    def exact_inputs(self, problem: Problem) -> ExactInputs:
        return ExactInputs(largest=1, scale=2)

    def refusal(self, problem: Problem) -> str:
        if not isinstance(problem, Conv2d) or (problem.R, problem.S) != (1, 1):
            return "only convolutions of 1x1 filters"
        return ""

    def candidates(
        self, problem: Problem, context: Context, count: int | None, limits: SpaceLimits
    ) -> list[Candidate]:
        ranked = DIRECT.candidates(problem, context, count, limits)
        return [replace(it, schedule=_mark(it.schedule)) for it in ranked]

    def predict_seconds(self, problem: Problem, context: Context, schedule: Schedule) -> float:
        return DIRECT.predict_seconds(problem, context, _unmark(schedule))

    def lower_bound(self, context: Context, schedule: Schedule) -> float:
        return DIRECT.lower_bound(context, _unmark(schedule))

    def resolve(self, problem: Problem, schedule: Schedule, threads: int) -> LegalSchedule:
        if reason := self.refusal(problem):
            raise UnsupportedError(f"{problem}: algorithm pointwise: {reason}")
        return DIRECT.resolve(problem, _unmark(schedule), threads)

    def lower(self, plan: LegalSchedule, options: EmitOptions) -> LoweredPrimitive:
        source = DIRECT.lower(plan, options)
        return replace(source, schedule=_mark(plan.schedule))

    def error_terms(
        self, problem: Problem, numbers: Sequence[int], x: Doubles, w: Doubles
    ) -> ErrorTerms:
        terms = DIRECT.error_terms(problem, numbers, x, w)
        return replace(terms, roundings=terms.roundings + 1)

    def explain(self, request: ExplainRequest) -> PointwiseExplanation:
        return PointwiseExplanation(request)


def _mark(schedule: Schedule) -> Schedule:
    return schedule.with_nest((WORD, *schedule.nest))


def _unmark(schedule: Schedule) -> Schedule:
    return schedule.with_nest(step for step in schedule.nest if not isinstance(step, Transform))
