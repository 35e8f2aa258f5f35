"""Samples of a candidate's time, each with what disturbed it; which of them count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from polysci.errors import CheckError
from polysci.measure.disturbance import FULL_SPEED

LEAST_SAMPLES: Final = 3
MOST_TURNS: Final = 3  # times the samples asked for: how long disturbed ones are repeated
_WAITED: Final = 0.02  # of a sample's time, spent by a thread in waiting for a processor
MOST_DISTURBED: Final = 0.25  # of many measurements: with more, the machine was too busy


class DisturbedError(CheckError):
    """The machine was too busy to be measured."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds a call, and over the whole sample the shares of ``measure.disturbance``.

    ``waited`` and ``stolen`` are shares of its time, ``speed`` is the reference loop's share of its
    best, before or after, the lower one. ``clock`` are the rounds a second of a loop whose rounds
    take so many cycles, if there is one.
    """

    seconds: float
    waited: float = 0.0
    stolen: float = 0.0
    speed: float = 1.0
    clock: float = 1.0

    @property
    def rounds(self) -> float:
        """The time in rounds of that loop."""
        return self.seconds * self.clock

    @property
    def disturbed(self) -> bool:
        return self.waited > _WAITED or self.stolen > 0 or self.speed < FULL_SPEED


@dataclass(slots=True)
class Samples:
    """The samples of one candidate. Those that count are the undisturbed ones, if there are some.

    With fewer than ``LEAST_SAMPLES`` of them the fastest so many count: what disturbs adds time.
    """

    taken: list[Sample] = field(default_factory=list)

    def add(self, sample: Sample) -> None:
        self.taken.append(sample)

    def enough(self, count: int) -> bool:
        """Return whether ``count`` samples are clean, or more would be in vain after so many."""
        return len(self.clean) >= count or len(self.taken) >= MOST_TURNS * count

    @property
    def clean(self) -> tuple[float, ...]:
        """Seconds a call of the undisturbed samples."""
        return tuple(sample.seconds for sample in self.taken if not sample.disturbed)

    @property
    def seconds(self) -> tuple[float, ...]:
        """Seconds a call of the samples that count."""
        if len(self.clean) >= LEAST_SAMPLES:
            return self.clean
        return tuple(sorted(sample.seconds for sample in self.taken)[:LEAST_SAMPLES])

    @property
    def median(self) -> float:
        """The middle of the samples that count, in seconds a call."""
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Interquartile range of the samples that count, in seconds a call."""
        ordered, quarter = sorted(self.seconds), len(self.seconds) // 4
        return ordered[-quarter - 1] - ordered[quarter]

    @property
    def dropped(self) -> float:
        """The share of the samples that was disturbed."""
        return sum(sample.disturbed for sample in self.taken) / len(self.taken)

    @property
    def disturbed(self) -> bool:
        """Tell whether some were, and too few were not."""
        return self.dropped > 0 and len(self.clean) < LEAST_SAMPLES

    @property
    def speed(self) -> float:
        """The median speed of the reference loop, as a share of its best."""
        return median(sample.speed for sample in self.taken)


def fastest(runs: Sequence[Sample]) -> Sample:
    """The fastest undisturbed run; the fastest of all where other work disturbed every one."""
    clean = [run for run in runs if not run.disturbed]
    return min(clean or runs, key=lambda run: run.seconds)


def is_worse(one: Samples, other: Samples) -> bool:
    """Return whether a candidate is slower than another one beyond what either's samples spread."""
    return one.median - other.median > max(one.spread, other.spread)


def is_beaten(one: Samples, every: Sequence[Samples]) -> bool:
    """Return whether some candidate is faster beyond the spread, where both were sampled enough."""
    ready = [samples for samples in (one, *every) if len(samples.taken) >= LEAST_SAMPLES]
    return one in ready and is_worse(one, min(ready, key=lambda samples: samples.median))


def check_quiet(what: str, measured: Sequence[Samples], most: float = MOST_DISTURBED) -> None:
    """Raise DisturbedError if more than a share ``most`` of what was measured is disturbed."""
    busy = sum(samples.disturbed for samples in measured)
    if busy > most * len(measured):
        raise DisturbedError(
            f"other work disturbed {busy} of {len(measured)} {what}, however often repeated; "
            "the next process tries again"
        )


def samples_of(seconds: Sequence[float]) -> Samples:
    """Samples that nothing is known to have disturbed."""
    return Samples([Sample(value) for value in seconds])
