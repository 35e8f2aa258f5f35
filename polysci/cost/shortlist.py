"""Rank the whole space by a model and select the best few schedules, without running them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysci.cost import RANKERS, Context, Estimate, Ranker, traffic
from polysci.cost.batch import batch, costs
from polysci.cost.call_forms import plain_forms
from polysci.errors import SpecError, UnsupportedError
from polysci.polyhedral.contraction import Contraction
from polysci.space import directives
from polysci.space.directives import Swap
from polysci.space.directives.ahead import (
    Ahead,
    Panels,
    ahead_may_pay,
    panels_beyond,
    toggle_ahead,
)
from polysci.space.directives.plain import panels_refusal, plain_roles
from polysci.space.enumerate import Family
from polysci.space.group_views import GroupView, group_views
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule
from polysci.space.summation import SummationOrder
from polysci.target.microkernels import find
from polysci.text.names import suggest

# Policies: how many schedules are listed.
MOST_CLASSES = 24  # kinds of register tiles in one primitive: each is compiled on its own
ALIKE = 2  # choices at most that are alike but for the steps of their loops
SPARE = 6  # times as many of a family are ranked: some cannot be generated
SECONDS = "traffic"  # the ranker whose costs are seconds
_STEP = re.compile(r":[0-9]+")


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
    kinds: int = 0,
    ranker: str = "traffic",
    tiles: int = 8,
    blocks: int = 2,
    order: SummationOrder | None = None,
) -> list[Choice]:
    """The ``count`` schedules of least cost, and the best of ``kinds`` other kinds.

    Ties go to the text that sorts first. Of schedules that are alike but for the steps of their
    loops there are ALIKE at most, so that an error of the model does not affect all. A kind that
    costs more than ``slower_kind`` times the least is left out; the best of other roles, more than
    ``slower_role`` times. With an ``order`` of sums there are no others. Raises SpecError for a
    ranker that does not exist, UnsupportedError where no schedule fits.
    """
    space = _RankedSpace.of(context, ranker, tiles, blocks, order)
    best = space.by_cost(
        lambda part: part.best_of_each(_kinds_without_steps, ALIKE)[: SPARE * count]
    )
    chosen = {choice.schedule: choice for choice in _take(best, count, _without_steps, ALIKE)}
    if kinds:
        others = space.by_cost(lambda part: part.best_of_each(_kinds, 1)[: SPARE * kinds])
        least = min(choice.cost for choice in chosen.values())
        most = context.machine.coefficient("slower_kind") * least
        near = takewhile(lambda choice: choice.cost <= most, others)
        chosen |= {choice.schedule: choice for choice in _take(near, kinds, kind_of, 1)}
        of_roles = space.by_cost(lambda part: part.best_of_each(_kinds, 1)[:SPARE])
        most = context.machine.coefficient("slower_role") * least
        near = takewhile(lambda choice: choice.cost <= most, of_roles)
        roles = _take(near, len(space.families), vectors_of, 1)
        chosen |= {choice.schedule: choice for choice in roles}
    return sorted(chosen.values(), key=lambda choice: (choice.cost, str(choice.schedule)))


def _take(
    ranked: Iterable[Choice], count: int, kind: Callable[[Schedule], Hashable], alike: int
) -> Iterator[Choice]:
    """The first ``count``, at most ``alike`` of a kind."""
    kinds = Counter[Hashable]()
    for choice in ranked:
        name = kind(choice.schedule)
        kinds[name] += 1
        if kinds[name] <= alike:
            yield choice
            count -= 1
        if not count:
            return


def vectors_of(schedule: Schedule) -> Hashable:
    """Return a key of a schedule's role: its kernel's family, swapped factors, a transform."""
    transform = schedule.transform and schedule.transform.name
    return find(schedule.kernel).family, schedule.has(Swap), transform


def _without_steps(schedule: Schedule) -> str:
    return _STEP.sub("", str(schedule))


def kind_of(schedule: Schedule) -> Hashable:
    """Return a key of how a schedule uses caches and registers, but for sizes.

    The kernel's family, type and columns, whether A is packed, C stored past the caches, the
    factors swapped, which dimensions are cut into blocks, which loop is the outermost, and which
    are parallel.
    """
    kernel, dims = find(schedule.kernel), [loop.dim for loop in schedule.loops]
    return (
        kernel.family, kernel.compute, kernel.cols,
        schedule.pack is not None,
        *(schedule.has(row) for row in directives.DIRECTIVES if row.own_kind),
        frozenset(dim for dim in dims if dims.count(dim) > 1), *dims[:1],
        *(loop.dim for loop in schedule.parallel),
    )  # fmt: skip


def rank_all(
    context: Context,
    limit: int | None = None,
    *,
    ranker: str = "traffic",
    tiles: int = 8,
    blocks: int = 2,
    order: SummationOrder | None = None,
) -> Iterator[Choice]:
    """Schedules by cost, best first, ``limit`` of one family and what costs as much as the last.

    With an ``order`` of sums those that have it.
    """
    space = _RankedSpace.of(context, ranker, tiles, blocks, order)
    return space.by_cost(lambda part: _smallest(part.cost, limit or len(part.cost)))


@dataclass(frozen=True, slots=True)
class _RankedFamily:
    """A family and its members' cost."""

    ranked: Ranked
    cost: NDArray[np.float64]

    def best_of_each(
        self, kinds: Callable[[Family], NDArray[np.int64]], count: int
    ) -> NDArray[np.intp]:
        """Indices of the members of least cost, ``count`` of every kind, by cost."""
        order = np.argsort(self.cost, kind="stable")
        return order[turns(kinds(self.ranked.family)[order]) < count]


@dataclass(frozen=True, slots=True)
class _RankedSpace:
    """All families of a context, with a ranker's costs."""

    context: Context
    families: Sequence[_RankedFamily]
    costs_are_seconds: bool

    @classmethod
    def of(
        cls, context: Context, ranker: str, tiles: int, blocks: int, order: SummationOrder | None
    ) -> _RankedSpace:
        chosen = ranker_of(ranker)
        families = [
            _RankedFamily(Ranked(view, wide, family), chosen.cost(wide, family))
            for view, wide in view_contexts(context)
            for family in _in_order(chosen.families(wide, tiles, blocks), view, order)
        ]
        return cls(context, families, ranker == SECONDS)

    def by_cost(self, some: Callable[[_RankedFamily], NDArray[np.intp]]) -> Iterator[Choice]:
        """The members that ``some`` picks of each family, by cost."""
        pool = [
            (float(part.cost[index]), number, int(index))
            for number, part in enumerate(self.families)
            for index in some(part)
        ]
        ranked = [part.ranked for part in self.families]
        return distinct(
            self.context, sorted(pool), ranked, costs_are_seconds=self.costs_are_seconds
        )


def _in_order(
    families: Iterable[Family], view: GroupView, order: SummationOrder | None
) -> Iterator[Family]:
    """Yield the members of each family that sum in that order."""
    for family in families:
        part = family.select(order.members(family, swap=view.swapped)) if order else family
        if len(part):
            yield part


def _kinds_without_steps(family: Family) -> NDArray[np.int64]:
    """A number for the kind of each member: all but the steps of its loops."""
    kind = _marks(family, family.which, family.pack + 1)
    for runs in _loops_that_run(family):
        kind = kind * 2 + runs
    return kind


def _kinds(family: Family) -> NDArray[np.int64]:
    """A number for the ``kind_of`` each member."""
    vectors = np.array([tile.kernel.vecs for tile in family.tiles])[family.which]
    kind: NDArray[np.int64] = _marks(family, vectors, family.pack >= 0)
    runs = _loops_that_run(family)
    names = list(dict.fromkeys(family.dims))
    outermost = np.full(len(family), len(names))
    for position in reversed(range(len(runs))):
        outermost = np.where(runs[position], names.index(family.dims[position]), outermost)
    kind = kind * 16 + outermost
    for name in names:
        own = [on for on, dim in zip(runs, family.dims, strict=True) if dim == name]
        kind = kind * 2 + (np.sum(own, axis=0) > 1)
    return kind


def _marks(family: Family, tile: NDArray[Any], pack: NDArray[Any]) -> NDArray[np.int64]:
    kind: NDArray[np.int64] = tile.astype(np.int64)
    own = (family.has(row) for row in directives.DIRECTIVES if row in family.marks and row.own_kind)
    for part in (pack, family.parallel, *own):
        kind = kind * 64 + part
    return kind


def _loops_that_run(family: Family) -> list[NDArray[np.bool_]]:
    """Return for each loop in which members it runs more than once."""
    around = {name: np.full(len(family), extent) for name, extent in family.extents.items()}
    runs = []
    for position, dim in enumerate(family.dims):
        step = family.steps[:, position]
        runs.append(step < around[dim])
        around[dim] = np.minimum(step, around[dim])
    return runs


def turns(kinds: NDArray[Any]) -> NDArray[np.intp]:
    """Return for each element how many before it are of its kind."""
    by_kind = np.argsort(kinds, kind="stable")
    ordered = kinds[by_kind]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(kinds) else by_kind
    counts = np.arange(len(kinds)) - np.repeat(first, np.diff(np.r_[first, len(kinds)]))
    result = np.empty(len(kinds), np.intp)
    result[by_kind] = counts
    return result


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
    """Indices of the ``count`` smallest values and of those equal to the last, in order."""
    if len(seconds) <= count:
        return np.argsort(seconds, kind="stable")
    some = np.flatnonzero(seconds <= np.partition(seconds, count - 1)[count - 1])
    return some[np.argsort(seconds[some], kind="stable")]


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


def predict_all(context: Context, schedules: Sequence[Schedule]) -> list[float]:
    """Predicted seconds of each schedule; those with the same loops at once."""
    return [float(its) for its in costs(context, schedules, lambda *its: traffic(*its).seconds)]


def plain_choices(context: Context, count: int, *, tiles: int, blocks: int) -> list[Schedule]:
    """The ``count`` best schedules that read B where it lies; none where nothing can."""
    if panels_refusal(context.contraction, context.strides):
        return []
    try:
        in_place = replace(context, contraction=plain_roles(context.contraction))
        ranked = choices(in_place, count, tiles=tiles, blocks=blocks)
    except UnsupportedError:  # each of them packs x too, which has gaps
        return []
    return list(plain_forms(context, (choice.schedule for choice in ranked)))


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
    """Return the schedule with or without ``ahead(B)``; None where B fits L2 or it has no code."""
    part, family = as_family(context, schedule)
    kernel, l2 = family.tiles[0].kernel, context.target.second_level.size
    if schedule.packs_parts_of_b:
        return None
    panels = panels_beyond(part.contraction, kernel, family.dims, family.steps, l2)
    if panels is None and not ahead_may_pay(part.contraction, l2):
        return None
    return _toggled(context, schedule)


def form_from_afar(context: Context, schedule: Schedule) -> Schedule | None:
    """Return a schedule with ``ahead(B)`` for a B that is not in L2, though it may fit there.

    None where it has that already, or its calls would not find the next panel in L2, or it has no
    code.
    """
    part, family = as_family(context, schedule)
    kernel, contraction = family.tiles[0].kernel, part.contraction
    if schedule.has(Ahead) or schedule.packs_parts_of_b or contraction.swapped:
        return None
    if kernel.family != "brgemm" or not kernel.in_vectors:
        return None
    panels = Panels.of(contraction, kernel, family.dims, family.steps, context.l2)
    return _toggled(context, schedule) if panels.follow(context.l2).all() else None


def _toggled(context: Context, schedule: Schedule) -> Schedule | None:
    """Return the schedule with or without ``ahead(B)``; None where that has no code."""
    try:
        other = toggle_ahead(schedule)
        resolve(context.contraction, context.strides, other)
    except (SpecError, UnsupportedError):
        return None
    return other
