"""Which schedules of residue classes to consider: those that fit the class with most products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from polysci.cost import Context, shortlist
from polysci.errors import PolysciError, UnsupportedError
from polysci.lower.algorithm import Candidate, SpaceLimits
from polysci.lower.residues.plan import (
    ResiduePlan,
    classes_of,
    representative,
    resolve,
    transform_of,
)
from polysci.ops.problem import Problem
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.schedule import Schedule, Step, Transform

SPARE = 2  # times as many of the class with most products: all classes decide which are the best


def class_contexts(plan: ResiduePlan, context: Context) -> list[Context]:
    """What the rankers see of each class."""
    return [
        replace(context, contraction=it.contraction, strides=it.strides(plan.strides))
        for it in plan.classes
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
    ordered = sorted(every.values(), key=lambda it: (it.seconds, str(it.schedule)))
    return ordered if count is None else ordered[: count + limits.kinds]


def _orders(schedule: Schedule, word: Transform) -> Iterator[tuple[Step, ...]]:
    """Classes inside the loop over images, so that they share what caches hold, or one by one."""
    first, rest = schedule.nest[:1], schedule.nest[1:]
    outer = next(iter(first), None)
    if isinstance(outer, Loop) and outer.dim == "n" and len(schedule.parallel) < 2:
        yield (outer, word, *rest)
    yield (word, *schedule.nest)
