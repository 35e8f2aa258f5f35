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
    {3: (1, 1), 4: (1, 2), 5: (3, 2), 6: (3, 3), 8: (3, 3)}
)
# Outputs of a tile by the taps of the filter, for each stride: those for which there is code.
OUTPUTS: Final[Mapping[int, Mapping[int, tuple[int, ...]]]] = MappingProxyType({
    1: MappingProxyType({1: (1,), 3: (2, 4), 5: (2, 4), 7: (2,)}),
    2: MappingProxyType({1: (1,), 3: (2, 4), 4: (2, 4), 5: (2, 4), 6: (2, 4), 7: (2,)}),
})  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Filtering:
    """``F(m, r)``: y = A^T [(G w) . (B^T x)], where x are neighbours and w are r taps.

    Raises SpecError unless that is y[i] = sum over s of x[stride * i + s] w[s] whatever x and w
    are: an identity of rationals.
    """

    m: int
    r: int
    into: Rational
    filter: Rational
    back: Rational
    stride: int = 1

    def __post_init__(self) -> None:
        for i in range(self.m):
            for s in range(self.r):
                for k in range(self.points):
                    rows = zip(self.back[i], self.filter, self.into, strict=True)
                    expected = k == self.stride * i + s
                    if sum(a * g[s] * b[k] for a, g, b in rows) != expected:
                        raise SpecError(f"{self}: x[{k}] w[{s}] in y[{i}] is not as it should be")

    def __str__(self) -> str:
        return f"F({self.m}, {self.r})"

    @property
    def points(self) -> int:
        """Products, as many as there are neighbours of x."""
        return self.stride * (self.m - 1) + self.r

    @property
    def parts(self) -> list[int]:
        """Points of each part: neighbours a stride apart meet taps a stride apart alone."""
        return [self.m + taps - 1 for taps in _parts(self.r, self.stride)]

    @property
    def roundings(self) -> int:
        """Roundings that a value meets on its way into a point, back, and through other parts."""
        every = [sum(ROUNDINGS[points]) for points in self.parts if points > self.m]
        return max(every, default=0) + len(self.parts) - 1

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
def filtering(m: int, r: int, stride: int = 1) -> Filtering:
    """Return F(m, r) at the first m + r - 2 of ``POINTS`` and at infinity (Toom and Cook).

    y is the transpose of a product of polynomials. Point p has the row of B^T that holds the
    product of t - q over the other points q, and that of G with powers of p over this at t = p.
    One tap multiplies each neighbour as it is. With a stride the parts follow one another, and
    y is their sum. Raises SpecError where there are too few points.
    """
    if stride > 1:
        return _interleave(m, r, stride)
    if r == 1:
        one = tuple(tuple(Fraction(i == k) for k in range(m)) for i in range(m))
        return Filtering(m, r, one, ((Fraction(1),),) * m, one)
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


def _parts(r: int, stride: int) -> list[int]:
    """Return the taps of each part: the first one has taps 0, stride, 2 * stride and so on."""
    return [len(range(part, r, stride)) for part in range(min(r, stride))]


def _interleave(m: int, r: int, stride: int) -> Filtering:
    """Return F(m, r) of a stride: one filtering for each part, side by side."""
    parts = [filtering(m, taps) for taps in _parts(r, stride)]

    def spread(row: Sequence[Fraction], part: int, width: int) -> tuple[Fraction, ...]:
        wide = [Fraction(0)] * width
        wide[part::stride] = row
        return tuple(wide)

    width = stride * (m - 1) + r
    into = tuple(spread(row, at, width) for at, own in enumerate(parts) for row in own.into)
    factors = tuple(spread(row, at, r) for at, own in enumerate(parts) for row in own.filter)
    back = tuple(sum((own.back[i] for own in parts), ()) for i in range(m))
    return Filtering(m, r, into, factors, back, stride)


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
