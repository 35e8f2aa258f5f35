"""The working set inside every loop, the cache that holds it, and the traffic into every cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polysci.cost import Context
from polysci.explain.terms import LEVELS, Terms
from polysci.polyhedral import footprint
from polysci.polyhedral.contraction import Contraction, Operand
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.schedule import Schedule
from polysci.target.target import Target

MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Inside:
    """One step of a schedule: the extents inside it, and the bytes that one iteration touches.

    ``step`` is the loop or packing, empty for the whole nest; ``trips`` its trip count. ``a`` is of
    x, ``b`` of w, ``c`` of the result, and ``kept`` gives, for these,
    the share of an iteration's elements that the previous one used as well; 0 for a single trip.
    ``fits`` is the smallest cache that holds the working set, or ``memory``.
    """

    step: str
    trips: int
    extents: tuple[tuple[str, int], ...]
    a: float
    b: float
    c: float
    fits: str
    kept: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def working_set(self) -> float:
        return self.a + self.b + self.c


@dataclass(frozen=True, slots=True)
class Flow:
    """Traffic into one cache level in bytes, and the lower bound for any schedule.

    ``kept`` is the working set that the model places there; ``holds`` the outermost step whose
    working set fits, ``None`` where not even the innermost fits.
    """

    level: str
    size: int
    a: float
    b: float
    c: float
    kept: float
    bound: float
    holds: str | None

    @property
    def total(self) -> float:
        return self.a + self.b + self.c


def sizes_of(target: Target, threads: int) -> tuple[int, ...]:
    """One thread's share of L1, L2 and L3, in bytes; of those that the target has."""
    levels = target.levels[: len(target.caches)]
    return tuple(int(target.share(cache.name, threads)) for cache in levels)


def insides(
    roles: Contraction, schedule: Schedule, sizes: tuple[int, ...], usable: float
) -> tuple[Inside, ...]:
    """Every step of a schedule from the whole nest inwards.

    The caches have ``sizes`` bytes, of which a share ``usable`` holds a working set.
    """
    held = tuple(usable * size for size in sizes)
    extents = {d.name: d.extent for d in roles.dims}
    operands = (roles.x, roles.w, roles.out)
    rows, depth, current = [_inside("", 1, operands, extents, held)], 0, extents
    for step in schedule.nest:
        trips, depth = 1, depth + isinstance(step, Loop)
        before, current = current, schedule.tile(extents, depth)
        kept = (0.0, 0.0, 0.0)
        if isinstance(step, Loop):
            trips = -(-before[step.dim] // step.step)
            if trips > 1:
                a, b, c = (_overlap(operand, step.dim, current, before) for operand in operands)
                kept = a, b, c
        rows.append(_inside(str(step), trips, operands, current, held, kept))
    return tuple(rows)


def _inside(
    step: str,
    trips: int,
    operands: tuple[Operand, ...],
    tile: dict[str, int],
    held: tuple[float, ...],
    kept: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> Inside:
    a, b, c = (_bytes(operand, tile) for operand in operands)
    return Inside(step, trips, tuple(tile.items()), a, b, c, _home(a + b + c, held), kept)


def _bytes(operand: Operand, tile: dict[str, int]) -> float:
    sizes = {name: np.full(1, float(size)) for name, size in tile.items()}
    return float(footprint.footprint(operand, sizes)[0]) * operand.bytes


def _overlap(operand: Operand, dim: str, tile: dict[str, int], around: dict[str, int]) -> float:
    """Share of an iteration's elements that its predecessor along ``dim`` used as well."""
    iteration = _bytes(operand, tile)
    pair = _bytes(operand, tile | {dim: min(2 * tile[dim], around[dim])})
    return max(0.0, 1.0 - (pair - iteration) / iteration)


def _home(size: float, held: tuple[float, ...]) -> str:
    fitting = (name for name, most in zip(LEVELS, held, strict=False) if size <= most)
    return next(fitting, MEMORY)


def flows_of(context: Context, terms: Terms, inside: tuple[Inside, ...]) -> tuple[Flow, ...]:
    """Traffic into every cache level, its lower bound, and the sub-nest that the level holds."""
    sizes = sizes_of(context.target, context.threads)
    return tuple(
        Flow(
            name, size, level.a, level.b, level.c, level.kept,
            footprint.load_bound_bytes(context.contraction, size),
            next((row.step for row in inside if row.working_set <= context.usable(size)), None),
        )
        for name, size, level in zip(LEVELS, sizes, terms.levels, strict=False)
    )  # fmt: skip
