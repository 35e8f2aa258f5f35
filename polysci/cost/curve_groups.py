"""Blocks along a Hilbert curve as nested loops: a run of its turns is nearly a square of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Final

import numpy as np

from polysci.cost.batch import batch
from polysci.cost.estimate import Context
from polysci.cost.traffic import traffic
from polysci.errors import SpecError, UnsupportedError
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives import Ahead, Hilbert, Plain, Private, Stream, Swap
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule, Step

FACTORS: Final = (2, 4, 8)  # of a block on a curve, in register tiles
LEAST_BLOCKS: Final = 4  # along each side: fewer are as well walked by loops
NEAR: Final = 1.03  # times the seconds of the best loops: the model errs by more


def square_groups(schedule: Schedule, extents: Mapping[str, int]) -> Iterator[Schedule]:
    """Loops over 1, 2, 4, .. blocks by as many, and over the blocks of each.

    A curve does no worse than the best of these at any level of the caches: it moves through each
    square before it comes to the next one.
    """
    at = schedule.nest.index(schedule.loops[0])
    blocks, rest = schedule.loops[:2], schedule.nest[at + 2 :]
    for size in _sizes(schedule, extents):
        outer = tuple(Loop(block.dim, block.step * size, block.parallel) for block in blocks)
        inner = tuple(replace(block, parallel=False) for block in blocks) if size > 1 else ()
        nest = (*schedule.nest[:at], *outer, *inner, *rest)
        yield schedule.without(Hilbert).with_nest(nest)


def _sizes(schedule: Schedule, extents: Mapping[str, int]) -> Iterator[int]:
    """Blocks along a side of a square: 1, 2, 4, .. as long as there are more than one square."""
    size = 1
    while size == 1 or all(b.step * size < extents[b.dim] for b in schedule.loops[:2]):
        yield size
        size *= 2


def curve_forms(context: Context, loops: Schedule) -> Iterator[Schedule]:
    """Blocks of a schedule's register tiles along a curve, with its block of the reduction.

    None where no curve can be better: for factors that L2 holds, few blocks, or other loops than
    those over one dimension of rows, one of columns and reductions.
    """
    contraction, parallel = context.contraction, context.threads > 1
    moving = {role: [d for d in contraction.dims if d.role == role and d.extent > 1]
              for role in ("m", "n", "k", "br", "batch")}  # fmt: skip
    factors = contraction.a.bytes + contraction.b.bytes
    sides = [*moving["m"], *moving["n"]]
    last = {loop.dim: replace(loop, parallel=False) for loop in loops.loops}
    if [*map(len, moving.values())] != [1, 1, 1, 0, 0] or not last.keys() >= {
        d.name for d in sides
    }:
        return
    sizes = [d.extent * moving["k"][0].extent for d in sides]
    l2 = context.target.second_level.size
    if sum(sizes) * factors / 2 <= l2 or any(map(loops.has, (Swap, Private, Plain))):
        return
    points = [last[d.name] for d in sides]
    deep = [last[d.name] for d in moving["k"] if d.name in last]
    copy = [loops.pack] if loops.pack and loops.pack_depth == 0 else []
    for by in product(FACTORS, repeat=2):
        blocks = [
            Loop(p.dim, p.step * times, parallel) for p, times in zip(points, by, strict=True)
        ]
        if all(LEAST_BLOCKS * b.step <= d.extent for b, d in zip(blocks, sides, strict=True)):
            nest: tuple[Step, ...] = (*copy, *blocks, *deep, *points)
            yield loops.without(Ahead, Stream).having(Hilbert()).with_nest(nest)


def best_curve(
    context: Context, loops: Schedule, seconds: float
) -> Iterator[tuple[Schedule, float]]:
    """The best curve beside loops of these seconds, and its own; none that is far off."""
    forms, rows = [*curve_forms(context, loops)], list[tuple[int, list[int]]]()
    if not forms:
        return
    extents = {d.name: d.extent for d in context.contraction.dims}
    for number, form in enumerate(forms):
        *_, nest = square_groups(form, extents)
        inner = [loop.step for loop in nest.loops[2:]]
        for size in _sizes(form, extents):  # a square of one block is a loop that runs once
            rows.append((number, [*(b.step * size for b in form.loops[:2]), *inner]))
    (part,) = batch(context, [nest])
    family = replace(
        part.family.select(np.zeros(len(rows), np.intp)),
        steps=np.array([steps for _, steps in rows], np.int64),
    )
    prices = dict.fromkeys(forms, np.inf)
    for (number, _), price in zip(rows, traffic(part.context, family).seconds, strict=True):
        prices[forms[number]] = min(prices[forms[number]], float(price))
    best = min(forms, key=lambda form: prices[form])
    try:
        resolve(context.contraction, context.strides, best)
    except (SpecError, UnsupportedError):
        return
    if prices[best] <= NEAR * seconds:
        yield best, prices[best]
