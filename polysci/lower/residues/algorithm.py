"""Residue classes as a row: what a gradient scatters by strides, as dense nests of its parts."""

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
from polysci.lower.residues import space
from polysci.lower.residues.emit import emit
from polysci.lower.residues.explain import ResiduesExplanation
from polysci.lower.residues.plan import ResiduePlan, refusal, resolve
from polysci.numerics.arrays import Doubles
from polysci.ops.problem import Problem
from polysci.space.schedule import Schedule


class Residues(Algorithm[ResiduePlan]):
    """Gradients of the inputs of strided convolutions; ``residues(2,2)`` names the strides."""

    @property
    def exact_inputs(self) -> ExactInputs:
        return ExactInputs()

    def refusal(self, problem: Problem) -> str:
        return refusal(problem)

    def candidates(
        self, problem: Problem, context: Context, count: int | None, limits: SpaceLimits
    ) -> list[Candidate]:
        return space.rank_schedules(problem, context, count, limits)

    def predict_seconds(self, problem: Problem, context: Context, schedule: Schedule) -> float:
        return sum(space.predict_parts(resolve(problem, schedule, context.threads), context))

    def other_form(self, problem: Problem, context: Context, schedule: Schedule) -> Schedule | None:
        return None

    def lower_bound(self, context: Context, schedule: Schedule) -> float:
        return 0.0

    def lower(self, problem: Problem, schedule: Schedule, threads: int) -> ResiduePlan:
        return resolve(problem, schedule, threads)

    def emit(self, lowered: ResiduePlan, options: EmitOptions) -> Source:
        return emit(lowered, options)

    def error_terms(
        self, problem: Problem, numbers: Sequence[int], x: Doubles, w: Doubles
    ) -> ErrorTerms:
        """``|W| * |dY|``, and the most products in one sum."""
        return ErrorTerms(problem.reference(abs(x), abs(w)), problem.terms)

    def explain(self, request: ExplainRequest) -> ResiduesExplanation:
        return ResiduesExplanation.of(request)
