"""The model's order: the best few schedules of the whole space, predicted but not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from polysci import codegen
from polysci.codegen import groups
from polysci.contraction import Contraction, columns_of
from polysci.errors import SpecError, UnsupportedError
from polysci.microkernel import find, lanes
from polysci.rank import RANKERS, Context, Estimate
from polysci.schedule import Schedule
from polysci.space import Family, RegisterTile, row_dims, schedules

MOST_CLASSES = 24  # kinds of register tiles in one primitive: each is compiled on its own
STREAMED = 0.5  # of the last-level cache: larger outputs may go past it
ALIKE = 4  # at most a fourth of the choices may share register tile and packing


@dataclass(frozen=True, slots=True)
class Choice:
    """A schedule with its predicted seconds; ``family`` and ``index`` say where it came from."""

    schedule: Schedule
    seconds: float
    family: Family
    index: int
    estimate: Estimate


def choices(
    context: Context,
    count: int,
    *,
    ranker: str = "traffic",
    tiles: int = 8,
    blocks: int = 2,
) -> list[Choice]:
    """The ``count`` schedules of least predicted time; ties go to the text that sorts first.

    At most a fourth of them share register tile and packing, so that a systematic error of the
    model does not decide for all. Raises SpecError for a ranker that does not exist,
    UnsupportedError where nothing fits.
    """
    found = every(context, 6 * count, ranker=ranker, tiles=tiles, blocks=blocks)
    alike: Counter[tuple[str, int, bool]] = Counter()
    chosen: list[Choice] = []
    for choice in found:
        kind = (
            choice.schedule.kernel,
            int(choice.family.pack[choice.index]),
            choice.schedule.stream,
        )
        alike[kind] += 1
        if alike[kind] <= max(2, count // ALIKE):
            chosen.append(choice)
        if len(chosen) == count:
            break
    return sorted(chosen, key=lambda choice: (choice.seconds, str(choice.schedule)))


def every(
    context: Context,
    most: int | None = None,
    *,
    ranker: str = "traffic",
    tiles: int = 8,
    blocks: int = 2,
) -> Iterator[Choice]:
    """Schedules by predicted time, best first; ``most`` bounds how many of one family count."""
    if ranker not in RANKERS:
        raise SpecError(f"ranker {ranker!r}: expected one of {', '.join(RANKERS)}")
    predict = RANKERS[ranker]
    pool: list[tuple[float, int, int]] = []
    families: list[_Ranked] = []
    for factor, wide in _widths(context):
        for family in schedules(
            wide.contraction, wide.strides, wide.target.isa.name, wide.threads,
            tiles=tiles, blocks=blocks,
            cache=STREAMED * wide.target.l3,
        ):  # fmt: skip
            estimate = predict(wide, family)
            best = _least(estimate.seconds, most or len(family))
            pool += [(float(estimate.seconds[i]), len(families), int(i)) for i in best]
            families.append(_Ranked(factor, family, estimate))
    return _distinct(context, sorted(pool), families)


@dataclass(frozen=True, slots=True)
class _Ranked:
    """A family of the problem with ``factor`` groups in one call, and its estimate."""

    factor: int
    family: Family
    estimate: Estimate

    def schedule(self, contraction: Contraction, index: int) -> Schedule:
        plan = self.family.schedule(index)
        return groups.from_merged(contraction, plan, self.factor) if self.factor > 1 else plan


def _widths(context: Context) -> Iterator[tuple[int, Context]]:
    """The problem as it is, and with so many narrow groups in one call as fill the lanes."""
    yield 1, context
    group = groups.group_of(context.contraction)
    if group is None:
        return
    columns = context.contraction.by_role("n")[0].extent
    for factor in range(2, group.extent + 1):
        if group.extent % factor == 0 and factor * columns <= lanes(context.target.isa.name):
            yield factor, replace(context, contraction=groups.merged(context.contraction, factor))


def _least(seconds: np.ndarray, count: int) -> np.ndarray:
    """Indices of the ``count`` least values, in order."""
    if len(seconds) <= count:
        return np.argsort(seconds, kind="stable")
    some = np.argpartition(seconds, count)[:count]
    return some[np.lexsort((some, seconds[some]))]


def _distinct(
    context: Context, pool: list[tuple[float, int, int]], families: list[_Ranked]
) -> Iterator[Choice]:
    """The members of a pool, one a schedule text, leaving out what cannot be generated."""
    seen: set[str] = set()
    refusal: Exception | None = None
    large: Choice | None = None  # the best of those with too many kinds of tiles
    found = False
    for seconds, number, index in pool:
        ranked = families[number]
        schedule = ranked.schedule(context.contraction, index)
        if str(schedule) in seen:
            continue
        seen.add(str(schedule))
        try:
            kinds = codegen.plan(context.contraction, context.strides, schedule).classes()
        except (SpecError, UnsupportedError) as error:
            refusal = refusal or error
            continue
        choice = Choice(schedule, seconds, ranked.family, index, ranked.estimate)
        if len(kinds) <= MOST_CLASSES:
            found = True
            yield choice
        large = large or choice
    if not found and large is None:
        raise UnsupportedError(f"no schedule fits {context.contraction}: {refusal}")
    if not found and large is not None:
        yield large


def predicted(context: Context, plan: Schedule, ranker: str = "traffic") -> float:
    """Predicted seconds of one schedule."""
    return float(estimate_of(context, plan, ranker).seconds[0])


def estimate_of(context: Context, plan: Schedule, ranker: str = "traffic") -> Estimate:
    """A ranker's estimate of one schedule."""
    factor = groups.factor_in(context.contraction, plan)
    if factor > 1:
        plan = groups.to_merged(context.contraction, plan, factor)
        context = replace(context, contraction=groups.merged(context.contraction, factor))
    return RANKERS[ranker](context, family_of(context, plan))


def family_of(context: Context, plan: Schedule) -> Family:
    """A family of one: the schedule as the rankers take it."""
    extents = {d.name: d.extent for d in context.contraction.dims}
    tile = plan.tile(extents)
    kernel = find(plan.kernel)
    column = columns_of(context.contraction).name
    rows = [d.name for d in row_dims(context.contraction, context.strides)]
    sizes = tuple((dim, tile[dim]) for dim in (column, *reversed(rows)))
    shape = RegisterTile(kernel, sizes, prod(tile[dim] for dim in rows))
    loops = plan.loops
    return Family(
        tuple(loop.dim for loop in loops),
        np.array([[loop.step for loop in loops]], dtype=np.int64).reshape(1, len(loops)),
        np.zeros(1, dtype=np.intp),
        (shape,),
        extents,
        np.array([plan.pack_depth if plan.pack else -1], dtype=np.intp),
        np.array([len(plan.parallel)], dtype=np.intp),
        np.array([plan.stream]),
        plan.pack.pad if plan.pack else 0,
    )
