"""The model's order: the best few schedules of the whole space, predicted but not run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod

import numpy as np

from polysci import codegen
from polysci.codegen.plan import columns_of
from polysci.errors import SpecError, UnsupportedError
from polysci.microkernel import find
from polysci.rank import RANKERS, Context, Estimate
from polysci.schedule import Schedule
from polysci.space import Family, RegisterTile, row_dims, schedules

MOST_CLASSES = 24  # kinds of register tiles in one primitive: each is compiled on its own
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

    Raises SpecError for a ranker that does not exist, UnsupportedError where nothing fits.
    """
    if ranker not in RANKERS:
        raise SpecError(f"ranker {ranker!r}: expected one of {', '.join(RANKERS)}")
    predict = RANKERS[ranker]
    space = schedules(
        context.contraction, context.strides, context.target.isa.name, context.threads,
        tiles=tiles, blocks=blocks,
    )  # fmt: skip
    pool: list[tuple[float, int, int]] = []
    families: list[tuple[Family, Estimate]] = []
    for family in space:
        estimate = predict(context, family)
        best = _least(estimate.seconds, 6 * count)
        pool += [(float(estimate.seconds[i]), len(families), int(i)) for i in best]
        families.append((family, estimate))
        if len(pool) > 64 * count:
            pool = sorted(pool)[: 16 * count]
    return _distinct(context, sorted(pool), families, count)


def _least(seconds: np.ndarray, count: int) -> np.ndarray:
    """Indices of the ``count`` least values, in order."""
    if len(seconds) <= count:
        return np.argsort(seconds, kind="stable")
    some = np.argpartition(seconds, count)[:count]
    return some[np.lexsort((some, seconds[some]))]


def _distinct(
    context: Context,
    pool: list[tuple[float, int, int]],
    families: list[tuple[Family, Estimate]],
    count: int,
) -> list[Choice]:
    """The best of a pool, one a schedule text, leaving out what cannot be generated."""
    found: dict[str, Choice] = {}
    refusal: Exception | None = None
    alike: Counter[tuple[str, int]] = Counter()
    for seconds, number, index in pool:
        family, estimate = families[number]
        schedule = family.schedule(index)
        kind = (schedule.kernel, family.pack)
        if str(schedule) in found or alike[kind] >= max(2, count // ALIKE):
            continue
        try:
            kinds = codegen.plan(context.contraction, context.strides, schedule).classes()
        except (SpecError, UnsupportedError) as error:
            refusal = error
            continue
        if len(kinds) <= MOST_CLASSES or not found:
            alike[kind] += 1
            found[str(schedule)] = Choice(schedule, seconds, family, index, estimate)
        if len(found) == count:
            break
    if not found:
        raise UnsupportedError(f"no schedule fits {context.contraction}: {refusal}")
    return sorted(found.values(), key=lambda choice: (choice.seconds, str(choice.schedule)))


def predicted(context: Context, plan: Schedule, ranker: str = "traffic") -> float:
    """Predicted seconds of one schedule."""
    return float(RANKERS[ranker](context, family_of(context, plan)).seconds[0])


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
        np.zeros(1, dtype=np.intp), (shape,), extents,
        plan.pack_depth if plan.pack else -1, plan.pack.pad if plan.pack else 0,
        len(plan.parallel),
    )  # fmt: skip
