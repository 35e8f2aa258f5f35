"""Which of a peer's ways to compute is the fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from polysci.measure.timed_calls import Timed

_TRIALS: Final = 5  # samples that decide


@dataclass(frozen=True, slots=True)
class TimedPaths:
    """Of every path, by name: the calls that make a sample, and the least seconds of a call."""

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
