"""The constant ranker: the schedules nearest to one template, the same for every layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from polysci.cost.batch import batch
from polysci.cost.estimate import Context
from polysci.errors import SpecError
from polysci.polyhedral.footprint import Count
from polysci.space.enumerate import Family
from polysci.space.schedule import Schedule
from polysci_rankers import template as templates
from polysci_rankers.rules import use_of
from polysci_rankers.template import Outlines, Template, outlines, parse

BEST = 3  # schedules of each layer of a training set that may become the template
TIES = 0.01  # weight of a register tile's waste: less than any mismatch

# The best one over the 49 layers of experiments/sample.py, one thread, warm caches; more threads
# share its outermost loop.
DEFAULT = parse("P4 k p q > 3v rows:half pack:none parallel:1 stream:no")

Training = Sequence[tuple[Context, Sequence[Schedule], NDArray[np.float64]]]


def constant(context: Context, family: Family) -> Count:
    """Distance to the default template; ties by the use of the register tile."""
    return nearness(DEFAULT)(context, family)


def nearness(template: Template) -> Callable[[Context, Family], Count]:
    """Return the cost by distance to a template; ties by the use of the register tile."""

    def cost(context: Context, family: Family) -> Count:
        return _cost(outlines(context, family), _waste(context, family), template, context.threads)

    return cost


def distance(context: Context, family: Family, template: Template) -> Count:
    """Weighted mismatches of every schedule with a template."""
    return templates.distance(outlines(context, family), template, context.threads)


def best_template(training: Training) -> Template:
    """The template whose nearest member of every layer comes closest to that layer's best.

    ``training`` has, for each layer, its context, schedules and their seconds. Candidates are the
    templates of the best few schedules of every layer; the score is the geometric mean over the
    layers of least seconds over those of the nearest schedule, the first in case of ties.
    Raises SpecError where there is nothing to learn from.
    """
    layers = [_layer(*layer) for layer in training if len(layer[1])]
    if not layers:
        raise SpecError("training set: expected at least one layer with a schedule")
    candidates: dict[str, Template] = {}
    for layer_outlines, _, seconds, _ in layers:
        for index in np.argsort(seconds, kind="stable")[:BEST]:
            template = layer_outlines.template(int(index))
            candidates.setdefault(str(template), template)

    def score(template: Template) -> float:
        reached = []
        for layer_outlines, waste, seconds, threads in layers:
            nearest = int(np.argmin(_cost(layer_outlines, waste, template, threads)))
            reached.append(np.log(seconds.min() / seconds[nearest]))
        return float(np.mean(reached))

    return max(candidates.values(), key=score)


def _layer(
    context: Context, schedules: Sequence[Schedule], seconds: NDArray[np.float64]
) -> tuple[Outlines, Count, NDArray[np.float64], int]:
    """Outlines and waste of all schedules in the order of their families, with their seconds."""
    if len(schedules) != len(seconds):
        raise SpecError(f"training set: {len(schedules)} schedules have {len(seconds)} times")
    parts, waste, indices = [], [], []
    for chunk in batch(context, schedules):
        parts.append(outlines(chunk.context, chunk.family))
        waste.append(_waste(chunk.context, chunk.family))
        indices.append(chunk.indices)
    order = np.argsort(np.concatenate(indices), kind="stable")
    columns = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])[order]
        for field in fields(Outlines)
    }
    return Outlines(**columns), np.concatenate(waste)[order], np.asarray(seconds), context.threads


def _waste(context: Context, family: Family) -> Count:
    return np.array([1 - use_of(context, tile) for tile in family.tiles])[family.which]


def _cost(layer_outlines: Outlines, waste: Count, template: Template, threads: int) -> Count:
    return templates.distance(layer_outlines, template, threads) + TIES * waste
