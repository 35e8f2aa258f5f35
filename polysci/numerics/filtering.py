"""Minimal filtering F(m, r), m outputs of r taps by m + r - 1 products: exact coefficients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import prod
from types import MappingProxyType
from typing import Final

import numpy as np

from polysci.errors import SpecError
from polysci.numerics.arrays import Doubles

Rational = tuple[tuple[Fraction, ...], ...]

# The points at which polynomials are multiplied; infinity is the last one of all. Few and small
# ones round least: a negative one shares sums, and a reciprocal keeps powers small.
POINTS: Final = tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2")))
# Roundings on the longest path through one pass of a transform, with or without fused
# multiply-adds, by the number of points: into, back.
ROUNDINGS: Final[Mapping[int, tuple[int, int]]] = MappingProxyType(
    {1: (0, 0), 4: (1, 2), 6: (3, 3), 8: (3, 3)}
)
# Outputs of a tile by the taps of the filter: those for which there is code.
OUTPUTS: Final[Mapping[int, tuple[int, ...]]] = MappingProxyType(
    {1: (1,), 3: (2, 4), 5: (2, 4), 7: (2,)}
)


@dataclass(frozen=True, slots=True, eq=False)
class Filtering:
    """``F(m, r)``: y = A^T [(G w) . (B^T x)], where x are m + r - 1 neighbours and w are r taps.

    Raises SpecError unless that is y[i] = sum over s of x[i + s] w[s] whatever x and w are: an
    identity of rationals.
    """

    m: int
    r: int
    into: Rational
    filter: Rational
    back: Rational

    def __post_init__(self) -> None:
        for i in range(self.m):
            for s in range(self.r):
                for k in range(self.points):
                    rows = zip(self.back[i], self.filter, self.into, strict=True)
                    if sum(a * g[s] * b[k] for a, g, b in rows) != (k == i + s):
                        raise SpecError(f"{self}: x[{k}] w[{s}] in y[{i}] is not as it should be")

    def __str__(self) -> str:
        return f"F({self.m}, {self.r})"

    @property
    def points(self) -> int:
        """Products, as many as there are neighbours of x."""
        return self.m + self.r - 1

    @property
    def roundings(self) -> int:
        """Roundings that a value meets on its way into a point and back."""
        return sum(ROUNDINGS[self.points])

    @property
    def matrices(self) -> tuple[Doubles, Doubles, Doubles]:
        """B^T, G and A^T in float64: [point][x], [point][tap] and [y][point]."""
        return _matrices(self)

    @property
    def powers(self) -> Doubles:
        """Powers of the points, as kernels multiply them by taps: [point][tap]."""
        return np.diag(1 / self.shares) @ self.matrices[1]

    @property
    def shares(self) -> Doubles:
        """The share of each point's sum of these that goes into a product."""
        return np.array([next(filter(None, row)) for row in self.filter], np.float64)


@cache
def filtering(m: int, r: int) -> Filtering:
    """Return F(m, r) at the first m + r - 2 of ``POINTS`` and at infinity (Toom and Cook).

    y is the transpose of a product of polynomials. Point p has the row of B^T that holds the
    product of t - q over the other points q, and that of G with powers of p over this at t = p.
    Raises SpecError where there are too few points.
    """
    if m + r - 2 > len(POINTS):
        raise SpecError(f"F({m}, {r}): at most {len(POINTS) + 1} points are known")
    points = POINTS[: m + r - 2]
    others = [[q for q in points if q != p] for p in points]
    into = [(*_from_roots(roots), Fraction(0)) for roots in others] + [_from_roots(points)]
    factors = [
        tuple(p**s / prod([p - q for q in roots], start=Fraction(1)) for s in range(r))
        for p, roots in zip(points, others, strict=True)
    ]
    last = tuple(Fraction(s == r - 1) for s in range(r))
    back = tuple((*(p**i for p in points), Fraction(i == m - 1)) for i in range(m))
    return Filtering(m, r, tuple(into), (*factors, last), back)


def _from_roots(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Return the coefficients of the product of t - q over all roots q, constants first."""
    found = [Fraction(1)]
    for root in roots:
        moved, scaled = [Fraction(0), *found], [*(-root * it for it in found), Fraction(0)]
        found = [a + b for a, b in zip(moved, scaled, strict=True)]
    return tuple(found)


@cache
def _matrices(own: Filtering) -> tuple[Doubles, Doubles, Doubles]:
    into, factors, back = (np.array(it, np.float64) for it in (own.into, own.filter, own.back))
    return into, factors, back
