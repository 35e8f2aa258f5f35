"""Axes of a figure: positions of values, ticks at round numbers, labels that do not overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

_STEPS = ((1.0, 2.0, 3.0, 5.0, 7.0), (1.0, 2.0, 5.0), (1.0, 3.0), (1.0,))
_SHORT = 4.0  # ratio of high to low below which ticks are spaced as on a linear axis


@dataclass(frozen=True, slots=True)
class Log:
    """A logarithmic axis from ``low`` to ``high``, drawn from ``start`` to ``end`` in pixels."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The position of a value; values outside the axis are at the nearer end."""
        share = log10(value / self.low) / log10(self.high / self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def ticks(self, limit: int) -> list[float]:
        """Return at most ``limit`` round values on the axis, as dense as possible."""
        if self.high < _SHORT * self.low:
            return self._even(limit)
        for steps in _STEPS:
            values = [value for value in self._multiples(steps) if self.holds(value)]
            if len(values) <= limit:
                return values
        return values[:: ceil(len(values) / limit)]

    def _even(self, limit: int) -> list[float]:
        """Multiples of one round step, as on a linear axis."""
        step = 10.0 ** floor(log10((self.high - self.low) / limit))
        while (self.high - self.low) / step > limit:
            step *= 2.5 if f"{step:e}".startswith("2") else 2  # 1, 2, 5, 10
        first, last = ceil(self.low / step), floor(self.high / step)
        return [count * step for count in range(first, last + 1)]

    def _multiples(self, steps: Sequence[float]) -> Iterator[float]:
        for power in range(floor(log10(self.low)), ceil(log10(self.high)) + 1):
            yield from (step * 10.0**power for step in steps)


@dataclass(frozen=True, slots=True)
class PlotArea:
    """A rectangle in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: PlotArea) -> float:
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, wide) * max(0.0, high)


def labels(
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    frame: PlotArea,
    obstacles: Sequence[PlotArea] = (),
    size: float = 12.0,
) -> list[tuple[float, float]]:
    """Centres for the labels of points, each near its point, with as little overlap as possible.

    Labels avoid ``obstacles``, and leave ``frame`` only where there is no room.
    """
    taken = [*obstacles, *(PlotArea(x - 6, y - 6, x + 6, y + 6) for x, y in points)]
    centres = []
    for (x, y), text in zip(points, texts, strict=True):
        wide, high = 0.62 * size * len(text) + 2, size
        best, lowest = (x, y), float("inf")
        for order, (right, down) in enumerate(_PLACES):
            cx, cy = x + right * (wide / 2 + 8), y + down * (high / 2 + 7)
            box = PlotArea(cx - wide / 2, cy - high / 2, cx + wide / 2, cy + high / 2)
            outside = wide * high - box.overlap(frame)
            cost = sum(box.overlap(other) for other in taken) + 4 * outside + 0.5 * order
            if cost < lowest:
                best, lowest, chosen = (cx, cy), cost, box
        taken.append(chosen)
        centres.append(best)
    return centres


# Right first, then around the point, then the same farther away.
_PLACES = [
    (reach * right, reach * down)
    for reach in (1.0, 1.9, 2.8, 3.8)
    for right, down in ((1, 0), (0, -1), (0, 1), (-1, 0), (1, -1), (1, 1), (-1, -1), (-1, 1))
]
