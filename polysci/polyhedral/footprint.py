"""Counting: how many elements a tile touches, and what each cache level must deliver.

The only place that counts points. Everything is closed-form and vectorised: an extent is an array
over candidate schedules, so that one call counts for thousands of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from polysci.numerics.arrays import LINE
from polysci.polyhedral.contraction import Contraction, Operand

Count = NDArray[np.float64]
Extents = Mapping[str, Count]
FLOAT = 4  # bytes of an f32


def extent_of(operand: Operand, axis: int, tile: Extents) -> Count:
    """Positions along one axis that a tile touches: the image of a box, clipped to the array.

    Exact for subscripts of up to two dimensions, wherever the tile lies inside the array.
    """
    terms = [(abs(coef), tile[dim]) for dim, coef in operand.index[axis].terms if dim in tile]
    touched = _pair(terms) if len(terms) == 2 else _span(terms)
    clipped: Count = np.minimum(touched, operand.shape[axis])
    return clipped


def steps_of(operand: Operand, strides: Sequence[int], tile: Extents) -> list[int]:
    """Return elements from each position along an axis to the next that a tile touches."""
    return [
        stride * (gcd(*(coef for dim, coef in index.terms if np.any(tile[dim] > 1))) or 1)
        for stride, index in zip(strides, operand.index, strict=True)
    ]


def _pair(terms: Sequence[tuple[int, Count]]) -> Count:
    """Distinct values of ``a*x + b*y``: they repeat under (x + b/g, y - a/g), g = gcd(a, b)."""
    (a, m), (b, n) = terms
    common = gcd(a, b)
    distinct: Count = m * n - np.maximum(m - b // common, 0) * np.maximum(n - a // common, 0)
    return distinct


def _span(terms: Sequence[tuple[int, Count]]) -> Count:
    """Return an upper bound: the span of the image, or the points of the box if those are fewer."""
    span, points = np.ones(1), np.ones(1)
    for coef, size in terms:
        span = span + coef * (size - 1)
        points = points * size
    least: Count = np.minimum(span, points)
    return least


def footprint(operand: Operand, tile: Extents) -> Count:
    """Distinct elements of an operand that a tile touches."""
    total = np.ones(1)
    for axis in range(len(operand.index)):
        total = total * extent_of(operand, axis, tile)
    return total


def extents_of(operand: Operand, tile: Extents) -> list[Count]:
    """Positions that a tile touches along every axis."""
    return [extent_of(operand, axis, tile) for axis in range(len(operand.index))]


def line_bytes(operand: Operand, strides: Sequence[int], tile: Extents) -> Count:
    """Return bytes of whole cache lines under the footprint, for this storage order."""
    runs_of_tile = runs(strides, extents_of(operand, tile), LINE, operand.bytes)
    return whole_blocks(*runs_of_tile, LINE)


def whole_blocks(run: Count, number: Count, block: int) -> Count:
    """Return bytes of whole blocks (cache lines, pages) of ``block`` bytes under so many runs."""
    total: Count = number * np.ceil(run / block) * block
    return total


def runs(
    strides: Sequence[int], extents: Sequence[Count], block: int, item: int = FLOAT
) -> tuple[Count, Count]:
    """Return bytes of one run of so many positions along the axes, and how many runs there are.

    ``item`` is the bytes of an element. Runs that lie less than ``block`` bytes apart share blocks:
    they are one run with its gaps.
    """
    run, number = np.full(1, float(item)), np.ones(1)
    for axis in sorted(range(len(strides)), key=strides.__getitem__):
        count, step = extents[axis], strides[axis] * item
        joins = step - run < block
        if joins.all():
            run = (count - 1) * step + run
        else:
            number = np.where(joins, number, number * count)
            run = np.where(joins, (count - 1) * step + run, run)
    return run, number


def crowding(
    run: Count,
    number: Count,
    strides: Sequence[int],
    extents: Sequence[Count],
    period: int,
    item: int = FLOAT,
) -> Count:
    """One over the share of a cache's sets that so many runs reach.

    ``period`` is the number of sets times the line. Runs a multiple of it apart share all their
    sets: a footprint that reaches one set in eight takes eight times its size of the cache.
    """
    lines = np.ceil(run / LINE)
    places, common = np.ones(1), period
    for stride, count in zip(strides, extents, strict=True):
        step = stride * item
        if step >= LINE:
            common = gcd(common, step)
            repeats = np.minimum(count, period // gcd(step, period))
            places = places * np.where(step > run, repeats, 1.0)
    places = np.minimum(places, period // common)
    reached = np.minimum(places * lines, np.minimum(number * lines, period / LINE))
    crowded: Count = period / LINE / reached
    return crowded


def refetches(operand: Operand, dims: Sequence[str], trips: Sequence[Count], depth: int) -> Count:
    """Return how often the loops outside ``depth`` bring an operand's tile in.

    Once for every iteration of the innermost loop that indexes it and runs more than once, and of
    all loops around that.
    """
    return fetches([operand.uses(dim) for dim in dims[:depth]], trips[:depth])[-1]


def fetches(indexes: Sequence[bool], trips: Sequence[Count]) -> list[Count]:
    """``refetches`` at every depth; ``indexes[j]`` says whether loop j indexes the operand."""
    counts, around = [np.ones(1)], np.ones(1)
    for on, trip in zip(indexes, trips, strict=True):
        around = around * trip
        counts.append(np.where(trip > 1, around, counts[-1]) if on else counts[-1])
    return counts


@dataclass(frozen=True, slots=True)
class LevelTraffic:
    """Traffic into one cache level, in bytes, by operand; and the working set that it keeps."""

    a: Count
    b: Count
    c: Count
    working_set: Count

    @property
    def total(self) -> Count:
        return self.a + self.b + self.c


def traffic(
    working_sets: Sequence[Count],
    moved: Sequence[tuple[Count, Count, Count]],
    size: float,
) -> LevelTraffic:
    """Traffic into a cache of ``size`` bytes.

    ``working_sets[j]`` and ``moved[j]`` describe the sub-nest inside the outermost j loops. A
    sub-nest that fits moves its footprint once a visit. Of one that does not, the cache keeps
    ``size / working set``: that share of what is used again is still there, the rest moves as
    often as the sub-nest inside it asks. ``working_set`` is of the largest one that fits.
    """
    a, b, c = moved[-1]
    kept = inner = working_sets[-1]
    for depth in range(len(moved) - 2, -1, -1):
        working = working_sets[depth]
        once = moved[depth]
        # A loop that runs once is no nest of its own: what it lost is lost already.
        other = (working != inner) | (sum(once) != sum(moved[depth + 1]))
        lost = np.where(other, 1.0 - size / np.maximum(working, size), 1.0)
        a, b, c = (
            whole + np.maximum(often - whole, 0.0) * lost
            for whole, often in zip(once, (a, b, c), strict=True)
        )
        kept = np.where(working <= size, working, kept)
        inner = working
    return LevelTraffic(a, b, c, kept)


def compulsory_bytes(contraction: Contraction) -> float:
    """Bytes that must move whatever the schedule: every input element once, every output once."""
    whole = {d.name: np.full(1, float(d.extent)) for d in contraction.dims}
    operands = (contraction.a, contraction.b, contraction.out)
    return float(sum(footprint(op, whole)[0] * op.bytes for op in operands))


def load_bound_bytes(contraction: Contraction, cache: float) -> float:
    """Lower bound on bytes loaded into a cache of ``cache`` bytes.

    The larger of the compulsory traffic and 2 MACs / sqrt(taps * S) elements, S the cache in
    elements: each element of a window is reused at most ``taps`` times more than in a matrix
    product (Chen et al., Communication lower bound in convolution accelerators, HPCA 2020).
    """
    macs, taps = 1.0, 1.0
    for dim in contraction.dims:
        macs *= dim.extent
        if dim.role == "br":
            taps *= dim.extent
    item = min(contraction.a.bytes, contraction.b.bytes)
    bound = 2.0 * macs / float(np.sqrt(taps * cache / item)) * item
    return max(compulsory_bytes(contraction), bound)
