"""The fastest of a peer's ways to compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from polysci.measure.timed_calls import Timed

_TRIALS: Final = 5  # samples that decide


@dataclass(frozen=True, slots=True)
class TimedPaths:
    """Calls that make a sample, and least seconds of a call, of every path by name."""

    calls: Mapping[str, int]
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, timed: Mapping[str, Timed], min_sample_s: float) -> TimedPaths:
        """Samples of at least ``min_sample_s`` seconds, taken in turns."""
        calls = {name: timer.calls(min_sample_s) for name, timer in timed.items()}
        seconds = dict.fromkeys(timed, float("inf"))
        for _ in range(_TRIALS):
            for name, timer in timed.items():
                seconds[name] = min(seconds[name], timer.seconds(calls[name]))
        return cls(calls, seconds)
