"""Working sets from loop to loop, where each of them lives, and the traffic into every cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polysci.explain.terms import LEVELS, Terms
from polysci.polyhedral import footprint
from polysci.polyhedral.contraction import Contraction, Operand
from polysci.polyhedral.schedule import Loop, Schedule
from polysci.rank import Context
from polysci.rank.traffic_counts import USABLE

MEMORY = "memory"
HELD = USABLE  # of a cache, as in the model


@dataclass(frozen=True, slots=True)
class Inside:
    """What lies inside one step of a schedule: extents, and bytes touched by one iteration.

    ``step`` is the loop or packing, empty for the whole nest; ``trips`` how often it runs in one
    iteration of what is around it. ``fits`` is the smallest cache that holds the working set, or
    ``memory``. ``kept`` gives, for A, B and C, the share of the next iteration's elements that
    the last one has just used; 0 where there is no next one.
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
    """Traffic into one cache level in bytes, beside the least that any schedule moves.

    ``kept`` is the working set that the model finds there; ``holds`` the outermost step all of
    whose inside fits, ``None`` where not even the innermost does.
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


def sizes_of(context: Context) -> tuple[int, ...]:
    """Bytes of L1, L2 and L3 that one thread has, where threads share a cache."""
    target = context.target
    return tuple(
        getattr(target, name.lower()) // target.sharing(name.lower(), context.threads)
        for name in LEVELS
    )


def insides(roles: Contraction, plan: Schedule, sizes: tuple[int, ...]) -> tuple[Inside, ...]:
    """Every step of a schedule from the whole nest inwards."""
    extents = {d.name: d.extent for d in roles.dims}
    operands = (roles.a, roles.b, roles.out)
    found, depth, current = [_inside("", 1, operands, extents, sizes)], 0, extents
    for step in plan.steps:
        trips, depth = 1, depth + isinstance(step, Loop)
        before, current = current, plan.tile(extents, depth)
        kept = (0.0, 0.0, 0.0)
        if isinstance(step, Loop):
            trips = -(-before[step.dim] // step.step)
            if trips > 1:
                a, b, c = (_overlap(operand, step.dim, current, before) for operand in operands)
                kept = a, b, c
        found.append(_inside(str(step), trips, operands, current, sizes, kept))
    return tuple(found)


def _inside(
    step: str,
    trips: int,
    operands: tuple[Operand, ...],
    tile: dict[str, int],
    sizes: tuple[int, ...],
    kept: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> Inside:
    a, b, c = (_bytes(operand, tile) for operand in operands)
    return Inside(step, trips, tuple(tile.items()), a, b, c, _home(a + b + c, sizes), kept)


def _bytes(operand: Operand, tile: dict[str, int]) -> float:
    sizes = {name: np.full(1, float(size)) for name, size in tile.items()}
    return float(footprint.footprint(operand, sizes)[0]) * operand.bytes


def _overlap(operand: Operand, dim: str, tile: dict[str, int], around: dict[str, int]) -> float:
    """Share of an iteration's elements that its predecessor along ``dim`` used as well."""
    one = _bytes(operand, tile)
    two = _bytes(operand, tile | {dim: min(2 * tile[dim], around[dim])})
    return max(0.0, 1.0 - (two - one) / one)


def _home(size: float, sizes: tuple[int, ...]) -> str:
    fitting = (name for name, held in zip(LEVELS, sizes, strict=True) if size <= HELD * held)
    return next(fitting, MEMORY)


def flows_of(context: Context, terms: Terms, inside: tuple[Inside, ...]) -> tuple[Flow, ...]:
    """Traffic into every cache level, the bound, and the sub-nest that lives there."""
    return tuple(
        Flow(
            name, size, level.a, level.b, level.c, level.kept,
            footprint.load_bound_bytes(context.contraction, size),
            next((one.step for one in inside if one.working_set <= HELD * size), None),
        )
        for name, size, level in zip(LEVELS, sizes_of(context), terms.levels, strict=False)
    )  # fmt: skip
