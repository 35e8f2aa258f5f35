"""Ranges of tensors from what they held: all of it, all but a share, or what loses least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polysci.errors import SpecError
from polysci.numerics.arrays import Array

METHODS: Final = ("minmax", "percentile", "entropy")
BINS: Final = 2048
LEVELS: Final = 256  # numbers that 8 bits hold
STEP: Final = 16  # bins between two ranges that ``entropy`` compares
LEAST: Final = 2.0**-100  # a scale: of a tensor that is 0 everywhere it is 1


@dataclass(frozen=True, slots=True)
class LinearRange:
    """Unsigned numbers of 8 bits for the real ones from ``low`` to ``high``, among them 0."""

    low: float
    high: float

    @property
    def scale(self) -> np.float32:
        scale = np.float32((self.high - self.low) / (LEVELS - 1))
        return scale if scale > LEAST else np.float32(1)

    @property
    def zero(self) -> np.uint8:
        return np.uint8(np.clip(np.rint(-self.low / float(self.scale)), 0, LEVELS - 1))


@dataclass(slots=True)
class Observer:
    """The ends of what a tensor held, and then how often it held what between them."""

    name: str
    low: float = 0.0
    high: float = 0.0
    counts: NDArray[np.float64] | None = None

    def see_ends(self, values: Array) -> None:
        """Raise SpecError for numbers that are not finite."""
        low, high = float(values.min(initial=0)), float(values.max(initial=0))
        if not (np.isfinite(low) and np.isfinite(high)):
            raise SpecError(
                f"tensor {self.name!r:.200}: the data makes numbers that are not finite"
            )
        self.low, self.high = min(self.low, low), max(self.high, high)

    def count(self, values: Array) -> None:
        """Count the values of another run, once all ends are known."""
        if self.counts is None:
            self.counts = np.zeros(BINS)
        high = self.high if self.high > self.low else self.low + 1
        counts, _ = np.histogram(values, BINS, (self.low, high))
        self.counts += counts

    def range_by(self, method: str, percentile: float) -> LinearRange:
        """Return the range by one of METHODS; ``percentile`` is the share, in percent, to hold."""
        if self.counts is None or self.high <= self.low or not self.counts.any():
            return LinearRange(self.low, self.high)
        if method == "percentile":
            return self._percentile(percentile)
        return self._entropy() if method == "entropy" else LinearRange(self.low, self.high)

    @property
    def _edges(self) -> NDArray[np.float64]:
        return np.linspace(self.low, self.high, BINS + 1)

    def _percentile(self, percentile: float) -> LinearRange:
        """Leave out one half of the rest at each end; an end at 0 stays there."""
        assert self.counts is not None
        shares = np.cumsum(self.counts) / self.counts.sum()
        sides = (self.low < 0) + (self.high > 0)
        out = (1 - percentile / 100) / sides
        edges = self._edges
        low = edges[np.searchsorted(shares, out)] if self.low < 0 else 0.0
        high = edges[np.searchsorted(shares, 1 - out - 1e-12) + 1] if self.high > 0 else 0.0
        return LinearRange(float(min(low, 0)), float(max(high, 0)))

    def _entropy(self) -> LinearRange:
        """Return the range whose 256 levels tell least about what they are rounded from.

        The Kullback-Leibler divergence between the counts, those outside put into the ends, and
        the counts that the levels keep (Migacz, 8-bit Inference with TensorRT, 2017). Ranges are
        parts of the whole one, with the same ratio of their ends.
        """
        assert self.counts is not None
        center = round(-self.low / (self.high - self.low) * BINS)
        best, chosen = np.inf, (0, BINS)
        for size in range(LEVELS, BINS + 1, STEP):
            first = center - round(center * size / BINS)
            loss = _divergence(self.counts, first, first + size)
            if loss < best:
                best, chosen = loss, (first, first + size)
        edges = self._edges
        return LinearRange(float(min(edges[chosen[0]], 0)), float(max(edges[chosen[1]], 0)))


def _divergence(counts: NDArray[np.float64], first: int, last: int) -> float:
    """Return how much a part of the counts tells beyond what its levels keep."""
    inside = counts[first:last]
    clipped = inside.copy()
    clipped[0] += counts[:first].sum()
    clipped[-1] += counts[last:].sum()
    level = np.arange(last - first) * LEVELS // (last - first)
    there = clipped > 0
    sums = np.bincount(level, inside * there, LEVELS)
    bins = np.bincount(level, there, LEVELS)
    kept = np.where(there, (sums / np.maximum(bins, 1))[level], 0)
    p, q = clipped / clipped.sum(), kept / max(kept.sum(), 1)
    both = there & (q > 0)
    missing = p[there & (q <= 0)].sum()  # what the levels lose altogether
    return float((p[both] * np.log(p[both] / q[both])).sum() + missing * np.log(BINS * LEVELS))
