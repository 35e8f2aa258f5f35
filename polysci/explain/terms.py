"""One prediction split into the terms of the traffic model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.cost import Context, Estimate
from polysci.cost.shortlist import estimate_of
from polysci.space.schedule import Schedule

LEVELS = ("L1", "L2", "L3")
FACTORS = ("imbalance",)  # fields of an Estimate that multiply; all other arrays are seconds
OTHER, HIDDEN = "other", "hidden"
MEANING: Mapping[str, str] = MappingProxyType(
    {
        "compute": "microkernel at its measured rate, tails included",
        "calls": "entering register tiles, moving C, summing its private copies",
        "transfer": "traffic that compute does not hide",
        "packing": "copying A, and a B that changes",
        "imbalance": "the busiest thread over the mean",
        OTHER: "what the terms above leave: crowded sets, starting threads",
        HIDDEN: "of the terms above, behind one another",
    }
)


@dataclass(frozen=True, slots=True)
class Moved:
    """Traffic into one cache level, in bytes of A, B and C, and the working set that it holds."""

    a: float
    b: float
    c: float
    kept: float

    @property
    def total(self) -> float:
        return self.a + self.b + self.c


@dataclass(frozen=True, slots=True)
class Terms:
    """One predicted time and its terms, in seconds.

    ``work`` is what one thread alone would spend on each term; ``shares`` is each term's part of
    the predicted time, so that they and ``other`` sum to it. ``other`` is negative where terms
    overlap. ``levels`` is the traffic into L1, L2 and L3, as many of them as the target has.
    """

    seconds: float
    work: tuple[tuple[str, float], ...]
    shares: tuple[tuple[str, float], ...]
    other: float
    imbalance: float
    levels: tuple[Moved, ...]

    def of(self, name: str) -> float:
        """Work of one term, 0 for a term that the model does not have."""
        return dict(self.work).get(name, 0.0)

    def stack(self) -> tuple[tuple[str, float], ...]:
        """Positive parts that sum to the predicted time, for a stacked bar."""
        parts = [*self.shares, (OTHER, self.other)]
        positive = [(name, value) for name, value in parts if value > 0]
        total = sum(value for _, value in positive) or 1.0
        return tuple((name, value * self.seconds / total) for name, value in positive)

    def to_json(self) -> dict[str, Any]:
        """The terms by name, in seconds of one thread's work, and the traffic in bytes."""
        names = ("a", "b", "c", "kept")
        return {
            "seconds": self.seconds,
            **dict(self.work),
            OTHER: self.other,
            "imbalance": self.imbalance,
            "shares": dict(self.shares),
            "levels": [
                {name: getattr(level, name) for name in names} | {"total": level.total}
                for level in self.levels
            ],
        }


def terms_of(context: Context, schedule: Schedule) -> Terms:
    """The traffic model's prediction for one schedule, in its parts."""
    estimate = estimate_of(context, schedule)
    threads = context.threads if schedule.parallel else 1
    seconds, imbalance = _first(estimate.seconds), _first(getattr(estimate, "imbalance", 1.0))
    work = tuple(_parts(estimate))
    shares = tuple((name, value / threads * imbalance) for name, value in work)
    other = seconds - sum(value for _, value in shares)
    if abs(other) < 1e-9 * seconds:  # rounding
        other = 0.0
    levels = tuple(
        Moved(*(_first(x) for x in (level.a, level.b, level.c, level.working_set)))
        for level in estimate.levels[: len(context.target.caches)]
    )
    return Terms(seconds, work, shares, other, imbalance, levels)


def _parts(estimate: Estimate) -> Iterator[tuple[str, float]]:
    """Every array of an estimate that counts seconds, in the order of its fields."""
    for field in fields(estimate):
        value = getattr(estimate, field.name)
        if field.name != "seconds" and field.name not in FACTORS and isinstance(value, np.ndarray):
            yield field.name, _first(value)


def _first(value: Any) -> float:
    return float(np.ravel(value)[0])
