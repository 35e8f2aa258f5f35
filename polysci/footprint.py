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

from polysci.contraction import Contraction, Operand

Count = NDArray[np.float64]
Extents = Mapping[str, Count]
LINE = 64  # bytes of a cache line
FLOAT = 4  # bytes of an f32


def extent_of(operand: Operand, axis: int, tile: Extents) -> Count:
    """Positions along one axis that a tile touches: the image of a box, clipped to the array.

    Exact for subscripts of up to two dimensions, wherever the tile lies inside the array.
    """
    terms = [(abs(coef), tile[dim]) for dim, coef in operand.index[axis].terms if dim in tile]
    touched = _pair(terms) if len(terms) == 2 else _span(terms)
    clipped: Count = np.minimum(touched, operand.shape[axis])
    return clipped


def _pair(terms: Sequence[tuple[int, Count]]) -> Count:
    """Distinct values of ``a*x + b*y``: they repeat under (x + b/g, y - a/g), g = gcd(a, b)."""
    (a, m), (b, n) = terms
    common = gcd(a, b)
    distinct: Count = m * n - np.maximum(m - b // common, 0) * np.maximum(n - a // common, 0)
    return distinct


def _span(terms: Sequence[tuple[int, Count]]) -> Count:
    """No more than the span of the image, and no more than the points of the box."""
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


def line_bytes(operand: Operand, strides: Sequence[int], tile: Extents) -> Count:
    """Bytes of whole cache lines under the footprint, for this storage order."""
    fastest = min(range(len(strides)), key=lambda axis: strides[axis])
    run = extent_of(operand, fastest, tile)
    next_axes = sorted(range(len(strides)), key=lambda axis: strides[axis])
    for axis in next_axes[1:]:  # whole inner axes merge into longer runs
        whole = run >= _inner_size(operand, next_axes, axis)
        run = np.where(whole, run * extent_of(operand, axis, tile), run)
    runs = footprint(operand, tile) / run
    lines: Count = runs * np.ceil(run * FLOAT / LINE) * LINE
    return lines


def _inner_size(operand: Operand, order: Sequence[int], axis: int) -> float:
    size = 1
    for inner in order[: order.index(axis)]:
        size *= operand.shape[inner]
    return size


def refetches(operand: Operand, dims: Sequence[str], trips: Sequence[Count], depth: int) -> Count:
    """How often the loops outside ``depth`` bring an operand's tile in.

    Once for every iteration of the innermost loop that indexes it and runs more than once, and of
    all loops around that.
    """
    total, around = np.ones(1), np.ones(1)
    for dim, trip in zip(dims[:depth], trips[:depth], strict=True):
        around = around * trip
        if operand.uses(dim):
            total = np.where(trip > 1, around, total)
    return total


@dataclass(frozen=True, slots=True)
class Level:
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
) -> Level:
    """Traffic into a cache of ``size`` bytes: of the largest sub-nest whose working set fits.

    ``working_sets[j]`` and ``moved[j]`` describe the sub-nest inside the outermost j loops. If not
    even the innermost fits, its traffic stands.
    """
    chosen = moved[-1]
    kept = working_sets[-1]
    a, b, c = chosen
    for inside in range(len(moved) - 1, -1, -1):
        fits = working_sets[inside] <= size
        a, b, c = (
            np.where(fits, new, old) for new, old in zip(moved[inside], (a, b, c), strict=True)
        )
        kept = np.where(fits, working_sets[inside], kept)
    return Level(a, b, c, kept)


def compulsory_bytes(contraction: Contraction) -> float:
    """Bytes that must move whatever the schedule: every input element once, every output once."""
    whole = {d.name: np.full(1, float(d.extent)) for d in contraction.dims}
    elements = sum(
        footprint(op, whole)[0] for op in (contraction.a, contraction.b, contraction.out)
    )
    return float(elements) * FLOAT


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
    bound = 2.0 * macs / float(np.sqrt(taps * cache / FLOAT)) * FLOAT
    return max(compulsory_bytes(contraction), bound)
