"""Calls in a row that are timed together, and the buffers that they take in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import ceil, inf
from typing import Any, Final

from polysci.numerics import arrays
from polysci.runtime.backend import Backend

# Where x, y, weights and workspace start in a page, in bytes: left to chance, a depthwise layer
# takes 18 or 38 us.
PAGE_OFFSETS: Final = (0, arrays.PAGE - arrays.BEHIND, 1088, 3136)
_WARM_UP_S: Final = 5e-3
_WAITS: Final = 5  # times a sample's seconds that it may take by the clock
_TRIALS: Final = 5  # samples that decide between paths
_COPIES: Final = 1 << 14  # problems of under 4 KiB stay in some cache


def count_copies(size: int, cold_bytes: int) -> int:
    """Return how many buffers of ``size`` bytes make ``cold_bytes``, within limits; 1 for none."""
    return 1 + min(cold_bytes // max(size, 1), _COPIES)


@dataclass(frozen=True, slots=True)
class Timed:
    """A candidate ready to be timed: its function, and the arguments of successive calls.

    ``backend`` is that of its device. ``keep`` holds the memory that the arguments point to.
    """

    backend: Backend
    run: Callable[..., int]
    arguments: Iterator[tuple[Any, ...]]
    keep: tuple[Any, ...]

    def warm_up(self, least_s: float) -> None:
        """Call once, and again until ``least_s`` seconds have passed."""
        start = time.perf_counter()
        self.seconds(1)
        while time.perf_counter() - start < least_s:
            self.seconds(1)

    def calls(self, least_s: float) -> int:
        """Warm up; return how many calls make a sample of ``least_s`` seconds or 100 ticks.

        Where a device takes longer to begin a call than for the call, they are fewer.
        """
        least = max(least_s, 100 * time.get_clock_info("perf_counter").resolution)
        calls, once, spent, start = 0, inf, inf, time.perf_counter()
        while calls < 2 or (time.perf_counter() - start < _WARM_UP_S and calls < 1000):
            began = time.perf_counter()
            calls, once = calls + 1, min(once, self.seconds(1))
            spent = min(spent, time.perf_counter() - began)
        return ceil(least / max(once, spent / _WAITS))

    def seconds(self, calls: int) -> float:
        """Mean time of one of several calls in a row."""
        return self.backend.time(self.run, list(islice(self.arguments, calls)))


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

    def fastest(self, names: Iterable[str]) -> str:
        """The fastest of these paths; of equal ones the first by name."""
        return min(names, key=lambda name: (self.seconds[name], name))
