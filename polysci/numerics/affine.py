"""Affine expressions over named dimensions, and the points at which they stay inside arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np


@dataclass(frozen=True, slots=True)
class Affine:
    """``sum(coef * dim) + const``; dims with coefficient 0 are left out."""

    terms: tuple[tuple[str, int], ...]
    const: int = 0

    def __str__(self) -> str:
        terms = [name if coef == 1 else f"{coef}*{name}" for name, coef in self.terms]
        if self.const or not terms:
            terms.append(str(self.const))
        return " + ".join(terms).replace("+ -", "- ")

    def reach(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """Return the smallest and the largest value over a box of so many iterations."""
        ends = [coef * (extents[name] - 1) for name, coef in self.terms]
        low, high = (self.const + sum(pick(0, end) for end in ends) for pick in (min, max))
        return low, high

    def coef(self, dim: str) -> int:
        for name, coef in self.terms:
            if name == dim:
                return coef
        return 0


Subscript = tuple[Affine, int]  # where it reads along an axis of so many places
_MOST: Final = 1 << 20  # points of all but the longest dimension


def count_inside(subscripts: Iterable[Subscript], extents: Mapping[str, int]) -> int:
    """Points of the box ``extents`` at which every subscript is one of its axis's places.

    Subscripts without a dimension in common are counted apart.
    """
    groups: list[tuple[set[str], list[Subscript]]] = []
    for subscript in subscripts:
        if _leaves(subscript, extents):
            dims, members = {name for name, _ in subscript[0].terms}, [subscript]
            for joined in [group for group in groups if group[0] & dims]:
                groups.remove(joined)
                dims, members = dims | joined[0], members + joined[1]
            groups.append((dims, members))
    counted = {name for dims, _ in groups for name in dims}
    count = math.prod(extent for name, extent in extents.items() if name not in counted)
    for dims, members in groups:
        count *= _count(members, {name: extents[name] for name in sorted(dims)})
    return count


def _leaves(subscript: Subscript, extents: Mapping[str, int]) -> bool:
    """Return whether some point of the box is outside the axis."""
    affine, size = subscript
    low, high = affine.reach(extents)
    return low < 0 or high >= size


def _count(subscripts: Sequence[Subscript], extents: Mapping[str, int]) -> int:
    """Count in closed form along the longest dimension, at each point of the others.

    All points where these are more than 2^20: no filter has as many taps.
    """
    if not extents:  # one place, beyond the axis
        return 0
    *others, longest = sorted(extents, key=lambda name: extents[name])
    if math.prod(extents[name] for name in others) > _MOST:
        return math.prod(extents.values())
    grid = dict(zip(others, np.ogrid[*(slice(extents[name]) for name in others)], strict=True))
    low: Any = 0
    high: Any = extents[longest] - 1
    for affine, size in subscripts:
        terms = [coef * grid[name] for name, coef in affine.terms if name != longest]
        rest, step = sum(terms, np.int64(affine.const)), affine.coef(longest)
        first, last = (-rest, size - 1 - rest) if step > 0 else (rest - size + 1, rest)
        if step:
            low = np.maximum(low, -(-first // abs(step)))
            high = np.minimum(high, last // abs(step))
        else:
            high = np.where((rest >= 0) & (rest < size), high, -1)
    return int(np.sum(np.maximum(0, high - low + 1)))
