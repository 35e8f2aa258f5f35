"""Tile loops of the problem's own nest around the microkernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from polysci import explain
from polysci.cost import Context, shortlist
from polysci.cost.call_forms import part_forms
from polysci.cost.traffic import lower_bound
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
from polysci.lower.direct.nest import lower_nest
from polysci.lower.lowering import LoweredPrimitive
from polysci.numerics.arrays import Doubles
from polysci.numerics.blocks import WIDEST, largest_of_blocks
from polysci.numerics.dtypes import precision_named
from polysci.ops.convolution_gradients import BackwardData
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.ops.textbook import nest_of, scop_of
from polysci.polyhedral import legality
from polysci.polyhedral.contraction import Contraction, Strides
from polysci.polyhedral.scop import Scop
from polysci.space.directives import Swap
from polysci.space.group_views import GroupView
from polysci.space.schedule import Schedule

FORMED = 12  # schedules of a B that changes, whose copies part by part are ranked


@lru_cache(maxsize=256)
def swapped_model_of(contraction: Contraction) -> tuple[Scop, Contraction]:
    """Return Scop and roles with the factors swapped: a nest over the pixels of whole images.

    Raises UnsupportedError where the roles forbid it.
    """
    roles = GroupView(swapped=True).of(contraction)
    return scop_of(nest_of(roles)), roles


@dataclass(frozen=True, slots=True)
class LegalSchedule:
    """A schedule that isl has found legal for the contraction."""

    contraction: Contraction
    strides: Strides
    schedule: Schedule
    threads: int


@dataclass(frozen=True, slots=True)
class NestExplanation:
    """The model's counts of the nest's loops."""

    nest: Explanation

    def render(self, width: int | None = None) -> str:
        return explain.render(self.nest, width)

    def members(self) -> dict[str, Any]:
        return explain.members(self.nest)


class Direct(Algorithm[LegalSchedule]):
    """Every problem whose nest writes an element in one place; the default."""

    def exact_inputs(self, problem: Problem) -> ExactInputs:
        return ExactInputs()

    @property
    def languages(self) -> tuple[str, ...]:
        return ("c", "cuda", "opencl")

    def refusal(self, problem: Problem) -> str:
        strided = isinstance(problem, BackwardData) and problem.scatters
        return "it scatters into its result: strides set neighbouring sums apart" if strided else ""

    def candidates(
        self, problem: Problem, context: Context, count: int | None, limits: SpaceLimits
    ) -> list[Candidate]:
        space: dict[str, Any] = {
            "ranker": limits.ranker, "tiles": limits.tiles, "blocks": limits.blocks,
            "order": limits.order,
        }  # fmt: skip
        spare = max(0, FORMED - (count or 0)) if context.contraction.packs_b else 0
        ranked = (
            () if limits.order and limits.order.plain
            else shortlist.rank_all(context, **space) if count is None
            else shortlist.choices(context, count + spare, kinds=limits.kinds, **space)
        )  # fmt: skip
        chosen = [Candidate(choice.schedule, choice.seconds) for choice in ranked]
        kept = len(chosen) if count is None else max(count, len(chosen) - spare)
        if count is None or limits.ranker != shortlist.SECONDS:
            return chosen[:kept]
        plain = shortlist.plain_choices(context, count, tiles=limits.tiles, blocks=limits.blocks)
        parts = part_forms(context, (candidate.schedule for candidate in chosen))
        forms = [*plain, *parts]
        others = map(Candidate, forms, shortlist.predict_all(context, forms))
        return sorted([*chosen, *others], key=lambda candidate: candidate.seconds)[:kept]

    def predict_seconds(self, problem: Problem, context: Context, schedule: Schedule) -> float:
        return shortlist.predict_seconds(context, schedule)

    def other_form(self, problem: Problem, context: Context, schedule: Schedule) -> Schedule | None:
        return shortlist.other_form(context, schedule)

    def lower_bound(self, context: Context, schedule: Schedule) -> float:
        return float(lower_bound(*shortlist.as_family(context, schedule))[0])

    def resolve(self, problem: Problem, schedule: Schedule, threads: int) -> LegalSchedule:
        if why := self.refusal(problem):
            raise UnsupportedError(f"{problem}: algorithm direct: {why}")
        scop, roles, strides = model_of(problem)
        model = swapped_model_of(roles) if schedule.has(Swap) else (scop, roles)
        legality.check(*model, schedule.tile_schedule(model[1].extents))
        return LegalSchedule(roles, strides, schedule, threads)

    def lower(self, plan: LegalSchedule, options: EmitOptions) -> LoweredPrimitive:
        contraction, schedule = plan.contraction, plan.schedule
        strides = {**plan.strides, **options.strides}
        a, block = contraction.a.array, contraction.a.block
        if block > 1:  # calls count numbers of x, the model blocks of them
            (rows, _), stored = plan.strides[a], options.strides.get(a)
            strides[a] = (stored[0] if stored else block * rows, block)
        return lower_nest(contraction, strides, schedule, plan.threads, options)

    def error_terms(
        self, problem: Problem, numbers: Sequence[int], x: Doubles, w: Doubles
    ) -> ErrorTerms:
        """``|W| * |X|``, and the products in one sum; a factor of it rounds, and is rounded.

        Beside weights in blocks kernels may split X into bytes, which are off by the largest number
        of a block over ``WIDEST`` at most.
        """
        roundings = problem.terms + 2 * (problem.factors[0] != 1)
        sizes: Doubles = abs(problem.reference(abs(x), abs(w)))
        row = precision_named(problem.dtype).w
        if row.block > 1 and not row.rounds_x:
            largest = largest_of_blocks(x, row.block)
            sizes = abs(sizes + 2.0**24 / (WIDEST * roundings) * problem.reference(largest, abs(w)))
        return ErrorTerms(sizes, roundings)

    def explain(self, request: ExplainRequest) -> NestExplanation:
        title, schedule, context = request.title, request.schedule, request.context
        scop, *_ = model_of(request.problem)
        source: dict[str, Any] = {"origin": request.origin, "measured": request.measured}
        if request.ranker is None:
            return NestExplanation(explain.account(title, scop, context, schedule, **source))
        return NestExplanation(
            explain.explain(title, scop, context, schedule, ranker=request.ranker, **source)
        )
