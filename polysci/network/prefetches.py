"""Prefetches of weights in networks: they come from beyond L2, also those that would fit there.

A layer that is timed or predicted alone finds its weights where the call before left them. In a
network whose weights exceed L2, other layers have taken their place.
"""

from __future__ import annotations

from collections.abc import Mapping

from polysci.cost.shortlist import form_from_afar
from polysci.network.options import PlanOptions
from polysci.network.prepare import PreparedNetwork, options_of
from polysci.ops.problem import Problem
from polysci.program.stages import LayerStage, members_of
from polysci.space.schedule import Schedule
from polysci.target.target import HOST
from polysci.tune import context_of


def prefetching(problem: Problem, schedule: Schedule, options: PlanOptions) -> Schedule | None:
    """Return a schedule whose calls prefetch the next panel of weights; None where none can."""
    if schedule.transform is not None or options.target.backend != HOST:
        return None
    context = context_of(problem, options.threads, options.target, machine=options.machine)
    return form_from_afar(context, schedule)


def with_prefetches(
    prepared: PreparedNetwork, chosen: Mapping[str, Schedule], options: PlanOptions
) -> dict[str, Schedule]:
    """Return the schedules, by key of problems; they prefetch weights if all of them exceed L2.

    Row fusions read the same weights again every few rows: their layers keep their schedules.
    """
    program, schedules = prepared.program, dict(chosen)
    constant = {its.weights for its in program.layers() if its.weights in program.constants}
    if sum(program.values[name].bytes for name in constant) <= options.target.second_level.size:
        return schedules
    by_key = options_of(program, options)
    own, others = dict[str, Problem](), set[str]()
    for stage in program.stages:
        for part in members_of(stage):
            if not isinstance(part, LayerStage):
                continue
            if part is stage and part.weights in constant and not part.stack:
                own[part.problem.key] = part.problem
            else:
                others.add(part.problem.key)
    for key in own.keys() - others:
        form = prefetching(own[key], schedules[key], by_key[key])
        if form and not prepared.refuse(key, form):
            schedules[key] = form
    return schedules
