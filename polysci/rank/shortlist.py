"""Rank the whole space by a model and select the best few schedules, without running them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from polysci.errors import SpecError, UnsupportedError
from polysci.polyhedral.contraction import Contraction
from polysci.polyhedral.schedule import Schedule
from polysci.rank import RANKERS, Context, Estimate, Ranker, traffic
from polysci.rank.batch import batch
from polysci.space.enumerate import Family
from polysci.space.group_views import GroupView, group_views
from polysci.space.resolve import resolve
from polysci.space.weights_ahead import panels_beyond
from polysci.text.suggestions import suggest

MOST_CLASSES = 24  # kinds of register tiles in one primitive: each is compiled on its own
ALIKE = 4  # at most a fourth of the choices may share register tile, packing and roles


@dataclass(frozen=True, slots=True)
class Choice:
    """A schedule, its ranker's ``cost`` and the seconds that the traffic model predicts.

    It is member ``index`` of ``family``.
    """

    schedule: Schedule
    cost: float
    seconds: float
    family: Family
    index: int


def choices(
    context: Context,
    count: int,
    *,
    ranker: str = "traffic",
    tiles: int = 8,
    blocks: int = 2,
) -> list[Choice]:
    """The ``count`` schedules of least cost; ties go to the text that sorts first.

    At most a fourth of them share register tile, packing and roles of the factors, so that a
    systematic error of the model does not affect all of them. Raises SpecError for a ranker that
    does not exist, UnsupportedError where no schedule fits.
    """
    ranked = rank_all(context, 6 * count, ranker=ranker, tiles=tiles, blocks=blocks)
    alike: Counter[tuple[str, int, bool, bool]] = Counter()
    chosen: list[Choice] = []
    for choice in ranked:
        kind = (
            choice.schedule.kernel,
            int(choice.family.pack[choice.index]),
            choice.schedule.stream,
            choice.schedule.swap,
        )
        alike[kind] += 1
        if alike[kind] <= max(2, count // ALIKE):
            chosen.append(choice)
        if len(chosen) == count:
            break
    return sorted(chosen, key=lambda choice: (choice.cost, str(choice.schedule)))


def rank_all(
    context: Context,
    limit: int | None = None,
    *,
    ranker: str = "traffic",
    tiles: int = 8,
    blocks: int = 2,
) -> Iterator[Choice]:
    """Schedules by cost, best first; at most ``limit`` of one family."""
    chosen = ranker_of(ranker)
    pool: list[tuple[float, int, int]] = []
    families: list[Ranked] = []
    for view, wide in view_contexts(context):
        for family in chosen.families(wide, tiles, blocks):
            cost = chosen.cost(wide, family)
            best = _smallest(cost, limit or len(family))
            pool += [(float(cost[i]), len(families), int(i)) for i in best]
            families.append(Ranked(view, wide, family))
    return distinct(context, sorted(pool), families, costs_are_seconds=ranker == "traffic")


def ranker_of(name: str) -> Ranker:
    """The ranker of that name. Raises SpecError where there is none."""
    if name not in RANKERS:
        raise SpecError(
            f"ranker {name!r}: expected one of {', '.join(RANKERS)}{suggest(name, RANKERS)}"
        )
    return RANKERS[name]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A family of ``context``, which is the problem seen through ``view``."""

    view: GroupView
    context: Context
    family: Family

    def seconds(self, index: int) -> float:
        """Predicted seconds of one member."""
        return float(traffic(self.context, self.family.member(index)).seconds[0])

    def schedule(self, contraction: Contraction, index: int) -> Schedule:
        return self.view.outside(contraction, self.family.schedule(index))


def view_contexts(context: Context) -> Iterator[tuple[GroupView, Context]]:
    """The problem itself, and every other view of it."""
    isa = context.target.isa.name
    for view in group_views(context.contraction, context.strides, isa):
        yield view, replace(context, contraction=view.of(context.contraction))


def _smallest(seconds: np.ndarray, count: int) -> np.ndarray:
    """Indices of the ``count`` smallest values, in order."""
    if len(seconds) <= count:
        return np.argsort(seconds, kind="stable")
    some = np.argpartition(seconds, count)[:count]
    return some[np.lexsort((some, seconds[some]))]


def distinct(
    context: Context,
    pool: Iterable[tuple[float, int, int]],
    families: list[Ranked],
    *,
    costs_are_seconds: bool,
) -> Iterator[Choice]:
    """The members of a pool, one a schedule text, without those that cannot be generated.

    Where ``costs_are_seconds``, seconds are not predicted again.
    """
    texts: set[str] = set()
    refusal: Exception | None = None
    large: Choice | None = None  # the best of those with too many kinds of tiles
    any_yielded = False
    for cost, number, index in pool:
        ranked = families[number]
        schedule = ranked.schedule(context.contraction, index)
        if str(schedule) in texts:
            continue
        texts.add(str(schedule))
        try:
            kinds = resolve(context.contraction, context.strides, schedule).classes()
        except (SpecError, UnsupportedError) as error:
            refusal = refusal or error
            continue
        seconds = cost if costs_are_seconds else ranked.seconds(index)
        choice = Choice(schedule, cost, seconds, ranked.family, index)
        if len(kinds) <= MOST_CLASSES:
            any_yielded = True
            yield choice
        large = large or choice
    if not any_yielded and large is None:
        it = context.contraction
        reason = refusal or f"no order of its loops leaves room for the packed copy of {it.a}"
        raise UnsupportedError(f"no schedule fits {it.formula}: {reason}")
    if not any_yielded and large is not None:
        yield large


def predict_seconds(context: Context, schedule: Schedule) -> float:
    """Predicted seconds of one schedule."""
    return float(estimate_of(context, schedule).seconds[0])


def estimate_of(context: Context, schedule: Schedule) -> Estimate:
    """The traffic model's estimate of one schedule."""
    return traffic(*as_family(context, schedule))


def cost_of(context: Context, schedule: Schedule, ranker: str) -> float:
    """A ranker's cost of one schedule."""
    return float(ranker_of(ranker).cost(*as_family(context, schedule))[0])


def as_family(context: Context, schedule: Schedule) -> tuple[Context, Family]:
    """A schedule as the rankers take it: a family of one member, in the view of its kernel."""
    (part,) = batch(context, [schedule])
    return part.context, part.family


def other_form(context: Context, schedule: Schedule) -> Schedule | None:
    """The schedule with or without ``ahead(B)``; None where weights fit L2 or it has no code."""
    part, family = as_family(context, schedule)
    kernel, l2 = family.tiles[0].kernel, context.target.l2
    if panels_beyond(part.contraction, kernel, family.dims, family.steps, l2) is None:
        return None
    other = replace(schedule, ahead=not schedule.ahead)
    try:
        resolve(context.contraction, context.strides, other)
    except UnsupportedError:
        return None
    return other
