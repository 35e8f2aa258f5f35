"""The learned ranker: a tournament of schedules, scored by weights trained on measured pairs.

A schedule is numbers to learn from: what the traffic model counts, the tile and the loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from math import log, prod

import numpy as np
from numpy.typing import NDArray

from polysci.cost.estimate import Context, Estimate
from polysci.cost.traffic import traffic
from polysci.cost.weights import LIMIT, LearnedScore, Weights
from polysci.errors import SpecError
from polysci.numerics.arrays import LINE, PAGE
from polysci.polyhedral.contraction import columns_of
from polysci.polyhedral.footprint import FLOAT, Count, compulsory_bytes
from polysci.space.directives import Stream
from polysci.space.enumerate import Family, RegisterTile

SMALL = 1e-3  # a share below it is as good as none; also keeps the logarithm of 0 finite
Features = NDArray[np.float64]
Column = tuple[str, Count]


def features(
    context: Context, family: Family, estimate: Estimate | None = None
) -> tuple[tuple[str, ...], Features]:
    """Names, and an array [schedules, features] of finite numbers.

    ``estimate`` is the traffic model's, where it is known already.
    A schedule has the same features in every family that holds it: loops that run once do not
    count. ``problem.`` features are equal for all schedules of a problem; they matter beside the
    others. A field added to Estimate becomes a feature automatically.
    """
    estimate, size = estimate or traffic(context, family), len(family)
    columns = [
        *_parts(context, estimate),
        *_levels(context, estimate),
        *_tile(context, family),
        *_loops(context, family),
        *_problem(context),
    ]
    table = np.empty((size, len(columns)))
    for position, (_, values) in enumerate(columns):
        table[:, position] = values
    return tuple(name for name, _ in columns), table


def _log(values: Count) -> Count:
    logs: Count = np.log(np.maximum(values, 0.0) + SMALL)
    return logs


def _parts(context: Context, estimate: Estimate) -> Iterator[Column]:
    """Predicted seconds over those at the FMA peak, and the share of every part in them."""
    ideal = 2.0 * _macs(context) / (context.machine.peak * 1e9 * context.threads)
    yield "seconds", np.log(estimate.seconds / ideal)
    yield "imbalance", np.log(estimate.imbalance)
    total_share = np.zeros(len(estimate.seconds))
    for field in fields(estimate):
        part = getattr(estimate, field.name)
        if field.name not in ("seconds", "imbalance") and isinstance(part, np.ndarray):
            share = part / (estimate.seconds * context.threads)
            yield f"{field.name}.share", _log(share)
            total_share += share
    yield "rest.share", _log(1.0 - total_share)  # time in no field
    yield "told", _log(total_share) + np.log(estimate.seconds / ideal)


def _macs(context: Context) -> float:
    """Multiply-adds, without those by the zeros between merged groups."""
    roles = context.contraction
    used = prod(float(d.extent) for d in roles.dims if roles.b.uses(d.name))
    macs = prod(float(d.extent) for d in roles.dims)
    return macs * min(1.0, prod(map(float, roles.b.shape)) / used)


def _levels(context: Context, estimate: Estimate) -> Iterator[Column]:
    """Bytes into every level over those that must move, by operand; working sets over caches."""
    target, compulsory = context.target, compulsory_bytes(context.contraction)
    sizes = [float(cache.size) for cache in target.levels]
    sizes[-1] /= max(1, context.threads)
    for number, (level, size) in enumerate(zip(estimate.levels, sizes, strict=True), 1):
        yield f"l{number}.total", np.log(level.total / compulsory)
        for operand in ("a", "b", "c"):
            yield f"l{number}.{operand}", _log(getattr(level, operand) / compulsory)
        yield f"l{number}.kept", np.log(level.working_set / size)


def _tile(context: Context, family: Family) -> Iterator[Column]:
    """The register tile: rows, vectors, rate from L1, share of full tiles, conflicts in L1."""
    extents = {d.name: d.extent for d in context.contraction.dims}

    def by_tile(value: Callable[[RegisterTile], float]) -> Count:
        return np.array([value(tile) for tile in family.tiles])[family.which]

    def rate(tile: RegisterTile) -> float:
        kernel = tile.kernel
        return log(context.machine.of_kernel(str(kernel), kernel.rows, kernel.vecs * kernel.shifts))

    def cut(tile: RegisterTile) -> float:
        lanes = tile.kernel.lanes
        column, *rows = tile.sizes
        width = -(-extents[column[0]] // lanes) * lanes
        cuts = [(width, tile.kernel.cols), *((extents[dim], size) for dim, size in rows)]
        return prod(extent / (-(-extent // size) * size) for extent, size in cuts)

    yield "tile.rows", by_tile(lambda tile: float(tile.rows))
    yield "tile.vecs", by_tile(lambda tile: float(tile.kernel.vecs))
    yield (
        "tile.registers",
        by_tile(lambda tile: log(tile.rows * tile.kernel.vecs * tile.kernel.shifts)),
    )
    yield "tile.rate", by_tile(rate)
    yield "tile.whole", by_tile(cut)
    ways = max(1, int(context.target.first_level.lines_apart(PAGE)))
    crowd = by_tile(lambda tile: max(0.0, log(_crowd(context, tile) / ways)))
    yield "tile.crowded", np.where(family.pack >= 0, 0.0, crowd)
    yield (
        "tile.merged",
        by_tile(lambda tile: float(sum(size > 1 for _, size in tile.sizes[1:]) > 1)),
    )


def _crowd(context: Context, tile: RegisterTile) -> int:
    """The most lines of A that one step of a register tile reads from one L1 set."""
    a, places = context.contraction.x, [0]
    offset = a.offset(context.strides[a.array])
    for name, count in tile.sizes[1:]:
        step = offset.coef(name) * FLOAT
        places = [at + i * step for at in places for i in range(count)]
    sets = Counter(line % (PAGE // LINE) for line in {place // LINE for place in places})
    return max(sets.values())


def _loops(context: Context, family: Family) -> Iterator[Column]:
    """Loops that run more than once: how many, how often, which is innermost; packing, threads."""
    trips, column = _trips(context, family), columns_of(context.contraction).name
    live = trips > 1
    before: NDArray[np.int_] = np.cumsum(live, axis=1) - live  # live loops around each loop
    position = np.arange(len(family.dims))
    packed, shared = family.pack >= 0, position < family.parallel[:, None]
    reduced = np.array([d in _reductions(context) for d in family.dims], dtype=bool)
    columns = np.array([d == column for d in family.dims], dtype=bool)
    inmost = live & (before == live.sum(axis=1, keepdims=True) - 1)
    outmost = live & (before == 0)
    logs = np.log(trips)
    yield "packed", packed.astype(float)
    yield "pack.depth", (live & (position < family.pack[:, None])).sum(axis=1)
    yield "stream", family.has(Stream).astype(float)
    yield "loops", live.sum(axis=1)
    yield "calls.log", logs.sum(axis=1)
    yield "split", (logs * reduced).sum(axis=1)
    yield "inmost.trips", (logs * inmost).sum(axis=1)
    yield "inmost.column", (inmost & columns).sum(axis=1)
    yield "outmost.trips", (logs * outmost).sum(axis=1)
    yield "outmost.column", (outmost & columns).sum(axis=1)
    yield "parallel", (live & shared).sum(axis=1)
    yield "tasks", (logs * shared).sum(axis=1)


def _reductions(context: Context) -> list[str]:
    return [d.name for d in context.contraction.dims if d.role in ("k", "br")]


def _trips(context: Context, family: Family) -> Features:
    """Iterations of every loop, [schedules, loops]."""
    current = {d.name: np.full(len(family), float(d.extent)) for d in context.contraction.dims}
    trips = np.ones((len(family), len(family.dims)))
    for position, dim in enumerate(family.dims):
        step = family.steps[:, position].astype(np.float64)
        trips[:, position] = np.ceil(current[dim] / step)
        current[dim] = np.minimum(step, current[dim])
    return trips


def _problem(context: Context) -> Iterator[Column]:
    """Features of the problem, equal for all its schedules."""
    roles = context.contraction
    out = roles.out.offset(context.strides[roles.out.array])
    sizes = {role: prod(d.extent for d in roles.by_role(role)) for role in ("k", "br", "m", "n")}
    for role, size in sizes.items():
        yield f"problem.{role}", np.array([log(size)])
    yield "problem.intensity", np.array([log(_macs(context) / compulsory_bytes(roles))])
    yield "problem.scattered", np.array([float(out.coef(columns_of(roles).name) != 1)])
    yield "problem.threads", np.array([log(context.threads)])


def tournament(context: Context, family: Family) -> Count:
    """Minus the score of every schedule: of any two the one that costs less should be faster.

    Microkernel families without training samples are ordered by ``traffic``.
    Raises SpecError where the context has no weights, or weights of other features.
    """
    weights = context.weights
    if weights is None:
        raise SpecError(
            "ranker 'learned': nothing was learned on this machine yet; 'polysci learn' trains it "
            "on the schedules that earlier searches measured"
        )
    names, table = features(context, family)
    check(weights, names)
    kind = family.tiles[0].kernel.family
    learned_score = dict(weights.scores).get(kind)
    return (
        traffic(context, family).seconds if learned_score is None else -score(learned_score, table)
    )


def check(weights: Weights, names: tuple[str, ...]) -> None:
    """Raise SpecError unless the weights belong to these features."""
    if weights.features != names:
        other = sorted(set(weights.features) ^ set(names))
        difference = f"{', '.join(other)} in one of them only" if other else "another order"
        raise SpecError(
            f"weights: features: expected those of this polysci, got {difference:.200}; "
            "'polysci learn' trains anew"
        )


def score(learned: LearnedScore, table: Features) -> NDArray[np.float64]:
    """Score of every row of a table of features [schedules, features]; higher is faster."""
    z = (table - np.array(learned.means)) / np.array(learned.scales)
    near = np.clip(z, -LIMIT, LIMIT)
    scores: NDArray[np.float64] = z @ np.array(learned.linear) + near**2 @ np.array(learned.squares)
    return scores
