"""The schedules of a layer that are compared inside a network.

Its search had weights in the caches. A network's come from memory, and then other panels may win,
or an algorithm with fewer weights: so the fastest schedule of each kind is among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from polysci.errors import PolysciError
from polysci.lower.choice import candidates, key_of, other_form
from polysci.network.options import PlanOptions
from polysci.ops.problem import Problem
from polysci.runtime.measurement import host_of
from polysci.space.schedule import Schedule, parse
from polysci.space.summation import SummationOrder
from polysci.tune import Result, context_of
from polysci.tune.wisdom import Record, Wisdom

ROUNDS: Final = 7  # schedules of each layer
KINDS: Final = 3  # of them the fastest of an algorithm or a kernel
FIRST: Final = 2  # of them what the model prefers with weights from memory, measured or not
NEAR: Final = 1.15  # of the least time alone: others of a kind that are slower are not tried
LIKELY: Final = 1.4  # of the least time alone: slower kinds do not win


def rivals(
    problem: Problem, result: Result, options: PlanOptions, wisdom: Wisdom
) -> list[Schedule]:
    """Up to ``ROUNDS`` schedules; the winner alone is the first."""
    distinct: dict[str, Schedule] = {}
    for schedule in _likely(problem, result, options, wisdom):
        distinct.setdefault(str(schedule), schedule)
        if len(distinct) == ROUNDS:
            break
    return list(distinct.values())


def _likely(
    problem: Problem, result: Result, options: PlanOptions, wisdom: Wisdom
) -> Iterator[Schedule]:
    """The winner alone, its other form, the fastest measured of each kind, others, the model's."""
    yield result.schedule
    context = context_of(problem, options.threads, options.target)
    with suppress(PolysciError):
        if other := other_form(problem, context, result.schedule):
            yield other
    records = _records(problem, options, wisdom)
    kinds = dict[tuple[str, str], Record]()
    for record in records:
        schedule = parse(record.schedule)
        kinds.setdefault((str(schedule.transform), schedule.kernel), record)
    fastest = [record for record in kinds.values() if record.seconds <= LIKELY * records[0].seconds]
    near = [record for record in records if record.seconds <= NEAR * records[0].seconds]
    kept = SummationOrder.of(context.contraction, result.schedule)
    order = kept if options.reproducible else None
    cold = candidates(problem, replace(context, cold=True), ROUNDS, options.algorithm, order=order)
    preferred = [choice.schedule for choice in cold if choice.seconds <= NEAR * cold[0].seconds]
    yield from (parse(record.schedule) for record in fastest[:KINDS])
    yield from preferred[:FIRST]
    yield from (parse(record.schedule) for record in near)
    yield from preferred[FIRST:]


def _records(problem: Problem, options: PlanOptions, wisdom: Wisdom) -> list[Record]:
    """What was measured of a problem, the fastest first."""
    key = key_of(problem, options.algorithm, reproducible=options.reproducible)
    with suppress(PolysciError):
        own = wisdom.measurements(host_of(options.target), threads=options.threads, problem_key=key)
        return sorted(own, key=lambda record: (record.seconds, record.schedule))
    return []
