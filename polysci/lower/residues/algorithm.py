"""Residue classes as a row: what a gradient scatters by strides, as dense nests of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from polysci import explain
from polysci.cost import Context, shortlist
from polysci.errors import PolysciError, UnsupportedError
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
from polysci.lower.lowering import Source
from polysci.lower.residues.nests import lower_residues
from polysci.lower.residues.plan import (
    ResiduePlan,
    classes_of,
    refusal,
    representative,
    resolve,
    transform_of,
)
from polysci.numerics.arrays import Doubles
from polysci.ops.problem import Problem
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.schedule import Schedule, Step, Transform
from polysci.text.tables import columns, time_text

SPARE = 2  # times as many of the class with most products: all classes decide which are the best


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
        return rank_schedules(problem, context, count, limits)

    def predict_seconds(self, problem: Problem, context: Context, schedule: Schedule) -> float:
        return sum(predict_parts(resolve(problem, schedule, context.threads), context))

    def other_form(self, problem: Problem, context: Context, schedule: Schedule) -> Schedule | None:
        return None

    def lower_bound(self, context: Context, schedule: Schedule) -> float:
        return 0.0

    def resolve(self, problem: Problem, schedule: Schedule, threads: int) -> ResiduePlan:
        return resolve(problem, schedule, threads)

    def lower(self, plan: ResiduePlan, options: EmitOptions) -> Source:
        return lower_residues(plan, options)

    def error_terms(
        self, problem: Problem, numbers: Sequence[int], x: Doubles, w: Doubles
    ) -> ErrorTerms:
        """``|W| * |dY|``, and the most products in one sum."""
        return ErrorTerms(problem.reference(abs(x), abs(w)), problem.terms)

    def explain(self, request: ExplainRequest) -> ResiduesExplanation:
        return ResiduesExplanation.of(request)


def class_contexts(plan: ResiduePlan, context: Context) -> list[Context]:
    """Return the context in which rankers see each class."""
    return [
        replace(context, contraction=residue.contraction, strides=residue.strides(plan.strides))
        for residue in plan.classes
    ]


def predict_parts(plan: ResiduePlan, context: Context) -> list[float]:
    """Predicted seconds of each class; where a loop is around all, its threads start once."""
    fork = (
        context.machine.coefficient("fork_us") * 1e-6
        if plan.shared and context.threads > 1
        else 0.0
    )
    parts = [
        shortlist.predict_seconds(own, schedule)
        for own, schedule in zip(class_contexts(plan, context), plan.schedules, strict=True)
    ]
    return [parts[0], *(max(0.0, part - fork) for part in parts[1:])]


def rank_schedules(
    problem: Problem, context: Context, count: int | None, limits: SpaceLimits
) -> list[Candidate]:
    """The ``count`` schedules of least predicted time (None: all), ties by their text.

    Raises UnsupportedError where nothing fits.
    """
    classes, word = classes_of(problem), transform_of(problem)
    most = representative(classes)
    strides = most.strides(context.strides)
    own = replace(context, contraction=most.contraction, strides=strides)
    space: dict[str, Any] = {
        "ranker": limits.ranker,
        "tiles": limits.tiles,
        "blocks": limits.blocks,
    }
    ranked = (
        shortlist.rank_all(own, **space) if count is None
        else shortlist.choices(own, SPARE * count, kinds=limits.kinds, **space)
    )  # fmt: skip
    every: dict[str, Candidate] = {}
    refused: PolysciError | None = None
    for choice in ranked:
        for steps in _orders(choice.schedule, word):
            schedule = choice.schedule.with_nest(steps)
            try:
                plan = resolve(problem, schedule, context.threads)
                every[str(schedule)] = Candidate(schedule, sum(predict_parts(plan, context)))
            except PolysciError as error:
                refused = refused or error
    if not every:
        raise UnsupportedError(f"{problem}: no schedule fits all residue classes: {refused}")
    ordered = sorted(every.values(), key=lambda own: (own.seconds, str(own.schedule)))
    return ordered if count is None else ordered[: count + limits.kinds]


def _orders(schedule: Schedule, word: Transform) -> Iterator[tuple[Step, ...]]:
    """Yield classes inside the loop over images, so that they share caches, and one by one."""
    first, rest = schedule.nest[:1], schedule.nest[1:]
    outer = next(iter(first), None)
    if isinstance(outer, Loop) and outer.dim == "n" and len(schedule.parallel) < 2:
        yield (outer, word, *rest)
    yield (word, *schedule.nest)


@dataclass(frozen=True, slots=True)
class ResiduesExplanation:
    """The classes with their predicted ``seconds``, and ``most``, that of most products."""

    request: ExplainRequest
    plan: ResiduePlan
    seconds: tuple[float, ...]
    most: Explanation

    @classmethod
    def of(cls, request: ExplainRequest) -> Self:
        """Explain the schedule of a request. Raises as ``resolve`` does."""
        plan = resolve(request.problem, request.schedule, request.context.threads)
        own = class_contexts(plan, request.context)[0]
        title = "The class with most products"
        most = explain.account(title, plan.classes[0].scop, own, plan.schedules[0])
        return cls(request, plan, tuple(predict_parts(plan, request.context)), most)

    @property
    def nest(self) -> None:
        """The counts of a single nest: None, as there are several."""
        return None

    def render(self, width: int | None = None) -> str:
        classes = {"Residue classes": columns([*self._classes()], (0, 3))}
        head = self.request.render(sum(self.seconds), classes, width)
        return f"{head}\n\n{explain.render(self.most, width)}"

    def _classes(self) -> Iterator[tuple[str, ...]]:
        yield ("pixels", "of them", "taps", "schedule", "predicted")
        for residue, own, seconds in zip(
            self.plan.classes, self.plan.schedules, self.seconds, strict=True
        ):
            scattered = [axis for axis, step in enumerate(residue.steps) if step > 1]
            where = ", ".join(f"{residue.steps[axis]}i+{residue.first[axis]}" for axis in scattered)
            sizes = " x ".join(str(residue.contraction.out.shape[axis]) for axis in scattered)
            yield (where, sizes, str(residue.taps or "none: zeros"), str(own), time_text(seconds))

    def members(self) -> dict[str, Any]:
        """Return the explanation as JSON members; times are in seconds."""
        return {
            **self.request.members(sum(self.seconds)),
            "classes": [
                {"first": list(residue.first), "steps": list(residue.steps), "taps": residue.taps,
                 "schedule": str(own), "predicted": seconds}
                for residue, own, seconds in zip(
                    self.plan.classes, self.plan.schedules, self.seconds, strict=True
                )
            ],
            "most": explain.members(self.most),
        }  # fmt: skip
