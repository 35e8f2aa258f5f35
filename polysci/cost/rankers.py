"""Rankers, the space from which they choose, and those of installed packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import numpy as np

from polysci.cost.estimate import Context
from polysci.errors import PolysciError, SpecError
from polysci.numerics.arrays import LINE
from polysci.numerics.dtypes import COMPUTES
from polysci.polyhedral.footprint import Count
from polysci.space.enumerate import Family, schedules, ways_of
from polysci.space.knobs import reads_copy
from polysci.target.extensions import Extension, add_each
from polysci.target.microkernels import Microkernel

GROUP = "polysci.rankers"
Answer = TypeVar("Answer")
Way = tuple[Microkernel, ...]


def competitive_ways(context: Context) -> tuple[Way, ...]:
    """The kernels of every way whose bound is near the least, that one first."""
    ways = ways_of(context.contraction, context.target.isa.name)
    if len(ways) < 2:
        return ways
    bounds = [_bound_seconds(context, way[0]) for way in ways]
    order = sorted(range(len(ways)), key=lambda index: bounds[index])
    most = context.machine.coefficient("slower_way") * min(bounds)
    return tuple(ways[index] for index in order if bounds[index] <= most)


def _bound_seconds(context: Context, kernel: Microkernel) -> float:
    """Seconds of one core: multiplications or the operands once, then copying A where needed."""
    contraction, machine = context.contraction, context.machine
    compute = COMPUTES[kernel.compute]
    operations = 2.0 * prod(d.extent for d in contraction.dims)
    rate = machine.peak * machine.fastest(kernel.compute)
    a, out = contraction.a, contraction.out
    panels = float(prod(contraction.b.shape)) * contraction.packed_item(compute)
    moved = panels + float(prod(a.shape)) * a.bytes + float(prod(out.shape)) * out.bytes
    offset = a.offset(context.strides[a.array])
    copied = float(prod(a.shape)) * compute.bytes if reads_copy(contraction, offset, kernel) else 0
    copied += panels if contraction.packs_b else 0
    return (
        max(operations / rate, moved / _bandwidth(context, moved)) * 1e-9
        + copied / LINE * machine.coefficient("copy_ns") * 1e-9
    )


def _bandwidth(context: Context, size: float) -> float:
    """GB/s at which the level that holds ``size`` bytes feeds one core."""
    target, machine = context.target, context.machine
    if context.cold or size > target.last_level.size:
        return machine.memory
    return machine.l3 if size > target.second_level.size else machine.l2


def space_of(context: Context, tiles: int, blocks: int) -> Iterator[Family]:
    """The space: of every competitive way to multiply, ``tiles`` register tiles.

    Up to ``blocks`` dimensions have cache blocks.
    """
    for way in competitive_ways(context):
        yield from schedules(
            context.contraction,
            context.strides,
            way,
            context.threads,
            tiles=tiles,
            blocks=blocks,
            cache=context.streamed,
            l2=context.target.second_level.size,
        )


@dataclass(frozen=True, slots=True)
class Ranker:
    """A way to order schedules: the least ``cost`` is the best, in whatever unit.

    ``cost`` gives one number for each schedule of a family; ``families`` the schedules to choose
    from, for a context and the limits of ``space_of``.
    """

    summary: str
    cost: Callable[[Context, Family], Count]
    families: Callable[[Context, int, int], Iterator[Family]] = space_of


def add_rankers(own: Mapping[str, Ranker]) -> Mapping[str, Ranker]:
    """Our rankers and, behind them, those of installed packages.

    A ranker that does not fit, or has the name of another one, is left out with a logged warning.
    """
    rankers = dict(own)

    def add(extension: Extension) -> None:
        if extension.name in rankers:
            raise SpecError(f"another ranker is called {extension.name!r}")
        if not isinstance(extension.value, Ranker):
            raise SpecError(f"expected a Ranker, got {extension.value!r:.80}")
        rankers[extension.name] = _check_answers(extension, extension.value)

    add_each(GROUP, add)
    return rankers


def _check_answers(extension: Extension, ranker: Ranker) -> Ranker:
    """The ranker, whose faults are SpecErrors that name its package."""

    def cost(context: Context, family: Family) -> Count:
        numbers = _call(extension, lambda: np.asarray(ranker.cost(context, family), float))
        if numbers.shape != (len(family),) or np.isnan(numbers).any():
            raise SpecError(
                f"{extension}: cost: expected a number for each of {len(family)} schedules, got "
                f"an array of shape {numbers.shape} with {np.isnan(numbers).sum()} NaNs"
            )
        return numbers

    def families(context: Context, tiles: int, blocks: int) -> Iterator[Family]:
        yield from _call(extension, lambda: list(ranker.families(context, tiles, blocks)))

    return Ranker(ranker.summary, cost, families)


def _call(extension: Extension, ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except PolysciError:
        raise
    except Exception as error:  # whatever a module of others raises
        raise SpecError(f"{extension}: {type(error).__name__}: {error}") from error
