"""Winograd's algorithm as a row: F(m x m, 3 x 3) around the same GEMMs."""

from __future__ import annotations

from collections.abc import Sequence

from polysci.cost import Context
from polysci.lower.algorithm import (
    Algorithm,
    Candidate,
    EmitOptions,
    ErrorTerms,
    ExactInputs,
    ExplainRequest,
    SpaceLimits,
)
from polysci.lower.direct.emit import Source
from polysci.lower.winograd import bound, cost, integers, rules, space
from polysci.lower.winograd.emit import emit
from polysci.lower.winograd.explain import WinogradExplanation
from polysci.lower.winograd.plan import WinogradPlan, resolve
from polysci.numerics.arrays import Doubles
from polysci.ops.problem import Problem
from polysci.space.directives.ahead import toggle_ahead
from polysci.space.schedule import Schedule


class Winograd(Algorithm[WinogradPlan]):
    """Convolutions of 3x3 filters in f32; ``winograd(m)`` computes m x m outputs a tile."""

    @property
    def exact_inputs(self) -> ExactInputs:
        return integers.EXACT

    def refusal(self, problem: Problem) -> str:
        return rules.refusal(problem)

    def candidates(
        self, problem: Problem, context: Context, count: int | None, limits: SpaceLimits
    ) -> list[Candidate]:
        return space.rank_schedules(problem, context, count)

    def predict_seconds(self, problem: Problem, context: Context, schedule: Schedule) -> float:
        plan = resolve(problem, schedule, context.threads)
        return cost.estimate(plan, context).seconds

    def other_form(self, problem: Problem, context: Context, schedule: Schedule) -> Schedule | None:
        plan = resolve(problem, schedule, context.threads)
        large = cost.exceeds_l2(plan, context)
        return toggle_ahead(schedule) if large else None

    def lower_bound(self, context: Context, schedule: Schedule) -> float:
        return 0.0

    def lower(self, problem: Problem, schedule: Schedule, threads: int) -> WinogradPlan:
        return resolve(problem, schedule, threads)

    def emit(self, lowered: WinogradPlan, options: EmitOptions) -> Source:
        return emit(lowered, options)

    def error_terms(
        self, problem: Problem, numbers: Sequence[int], x: Doubles, w: Doubles
    ) -> ErrorTerms:
        (m,) = numbers
        return ErrorTerms(bound.sizes(problem, x, w, m), bound.roundings(problem, m))

    def explain(self, request: ExplainRequest) -> WinogradExplanation:
        plan = resolve(request.problem, request.schedule, request.context.threads)
        return WinogradExplanation(request, plan)
