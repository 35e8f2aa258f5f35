"""A stratified sample of a problem's schedules: fast, medium and slow ones of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from polysci.cost import Context, traffic
from polysci.cost.rankers import space_of
from polysci.cost.shortlist import Choice, Ranked, distinct, turns, view_contexts
from polysci.errors import UnsupportedError
from polysci.space.directives import Stream
from polysci.space.enumerate import Family
from polysci.space.schedule import Schedule

RANGES = (1.1, 1.5, 4.0)  # bounds of predicted seconds over the least; equal shares of the sample


def sample_schedules(
    context: Context, count: int, *, seed: int = 0, first: int = 5
) -> list[Schedule]:
    """``count`` distinct schedules that can be generated, or all if there are fewer.

    The model's ``first`` ones; then in turns from three ranges of predicted time, and within a
    range in turns from every kind: loop order, register tile, place of the packing, parallel loops,
    stores past the caches. The same arguments give the same sample.
    """
    ranked = [
        Ranked(view, wide, family)
        for view, wide in view_contexts(context)
        for family in space_of(wide, 8, 2)
    ]
    seconds = [traffic(part.context, part.family).seconds for part in ranked]
    number = np.repeat(np.arange(len(ranked)), [len(part.family) for part in ranked])
    index = np.concatenate([np.arange(len(part.family)) for part in ranked])
    time = np.concatenate(seconds)
    kind = np.concatenate([_kinds(at, part.family) for at, part in enumerate(ranked)])
    rng = np.random.default_rng(seed)
    best = np.argsort(time, kind="stable")
    fastest, sample = time.min(), dict[Schedule, None]()
    orders = [best] + [
        _in_turns(kind, np.flatnonzero((time >= low * fastest) & (time <= high * fastest)), rng)
        for low, high in zip((0.0, *RANGES), RANGES, strict=False)
    ]
    sources = [_members(context, order, number, index, time, ranked) for order in orders]
    for choice in islice(sources[0], first):
        sample[choice.schedule] = None
    rounds = [iter(source) for source in sources[1:]]
    while rounds and len(sample) < count:
        rounds = [source for source in rounds if len(sample) >= count or _add(source, sample)]
    return list(sample)


def _add(source: Iterator[Choice], sample: dict[Schedule, None]) -> bool:
    """Add the next schedule of a source; False once it has none, or none that can be generated."""
    try:
        choice = next(source, None)
    except UnsupportedError:
        choice = None
    if choice is None:
        return False
    sample[choice.schedule] = None
    return True


def _members(
    context: Context,
    order: NDArray[np.intp],
    number: NDArray[np.intp],
    index: NDArray[np.intp],
    time: NDArray[np.float64],
    ranked: list[Ranked],
) -> Iterator[Choice]:
    if not len(order):
        return iter(())
    pool = ((float(time[at]), int(number[at]), int(index[at])) for at in order)
    return distinct(context, pool, ranked, costs_are_seconds=True)


def _kinds(number: int, family: Family) -> NDArray[np.int64]:
    """A number for each member's kind."""
    kind = np.full(len(family), number, dtype=np.int64)
    for part in (family.which, family.pack + 1, family.parallel, family.has(Stream)):
        kind = kind * 64 + part
    return kind


def _in_turns(
    kind: NDArray[np.int64], members: NDArray[np.intp], rng: np.random.Generator
) -> NDArray[np.intp]:
    """Members in random order, one of every kind before a second one of any."""
    members = rng.permutation(members)
    by_kind = members[np.argsort(kind[members], kind="stable")]
    kinds = kind[by_kind]
    turn = turns(kinds)
    shuffled = rng.permutation(len(by_kind))
    return by_kind[shuffled[np.argsort(turn[shuffled], kind="stable")]]
