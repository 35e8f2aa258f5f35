"""Other work on the processor while a sample ran: the kernel's counters, and a reference loop.

Linux counts, for every thread, the time that it was ready but waited for a processor
(``/proc/PID/task/TID/schedstat``, its second number, in nanoseconds), and, for the machine, the
time that a hypervisor gave to others (``steal`` in ``/proc/stat``, in clock ticks). Neither shows a
neighbour that shares a core's units or its power; a loop of known work before and after does.
Where a counter does not exist it stays at zero.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from polysci.runtime.policy import read_policy

Result = TypeVar("Result")
_TASKS: Final = Path("/proc/self/task")
_MACHINE: Final = Path("/proc/stat")
_STEAL: Final = 8  # the word of the first line, after "cpu"
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_LOOP_S: Final = 5e-5  # of the reference loop
_RUNS: Final = 4  # of it: a wait for a processor lengthens one of them, a neighbour all
RECENT: Final = 400  # runs: some seconds
BURST: Final = 16  # of so many runs one may be faster than the best
FULL_SPEED: Final = 0.9  # of the best: below it somebody has a part of the core


@dataclass(frozen=True, slots=True)
class Counters:
    """Seconds, up to now, in which threads of this process waited, and others had the machine.

    ``waits`` has a number for each thread that lives: one that ends takes its own away.
    """

    waits: Mapping[int, float]
    stolen: float

    @classmethod
    def now(cls) -> Counters:
        return cls(dict(_waits()), _stolen())

    def wait_since(self, earlier: Counters) -> float:
        """Return seconds that these threads waited after an earlier reading; new ones in all."""
        return sum(
            seconds - before if seconds >= (before := earlier.waits.get(thread, 0.0)) else seconds
            for thread, seconds in self.waits.items()
        )  # less than before: a new thread has the number of one that has ended

    def stolen_since(self, earlier: Counters) -> float:
        """Return the seconds that a hypervisor gave to others after an earlier reading."""
        return self.stolen - earlier.stolen


@cache
def watches_samples() -> bool:
    """Return whether this process watches its samples for other work, by the policy."""
    return read_policy().disturbance


def observe(work: Callable[[], Result]) -> tuple[Result, dict[str, float]]:
    """Return what ``work`` returns, and the shares ``waited`` and ``stolen`` of its time."""
    if not watches_samples():
        return work(), {}
    before, start = Counters.now(), time.perf_counter()
    result = work()
    spent, after = time.perf_counter() - start, Counters.now()
    shares = {"waited": after.wait_since(before), "stolen": after.stolen_since(before)}
    return result, {name: seconds / spent for name, seconds in shares.items()}


def _waits() -> Iterator[tuple[int, float]]:
    for task in _TASKS.iterdir() if _TASKS.exists() else ():
        try:
            yield int(task.name), int((task / "schedstat").read_bytes().split()[1]) * 1e-9
        except (OSError, IndexError, ValueError):  # a thread that has ended; a kernel without it
            continue


def _stolen() -> float:
    try:
        return int(_MACHINE.read_bytes().split(b"\n", 1)[0].split()[_STEAL]) * _TICK_S
    except (OSError, IndexError, ValueError):
        return 0.0


@dataclass(slots=True)
class ReferenceLoop:
    """A loop of known work, whose speed says how much of the core this process has.

    ``run(iterations)`` does work in proportion, and returns it. It is known to do ``least`` a
    second. The best of its rates is the most of the last RECENT runs but for a few: a short burst
    of the clock is no measure of what follows.
    """

    run: Callable[[int], float]
    least: float = 0.0
    iterations: int = 1000
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    @property
    def best(self) -> float:
        """The work a second where nothing disturbs the loop."""
        return max(sorted(self.rates)[-1 - len(self.rates) // BURST], self.least)

    def speed(self) -> float:
        """Return the speed of some runs, the fastest of them, as a share of the best, 1 at most."""
        fastest = 0.0
        for _ in range(_RUNS):
            self.rates.append(self._rate())
            fastest = max(fastest, self.rates[-1])
            if fastest >= FULL_SPEED * self.best:
                break
        return min(1.0, fastest / self.best)

    def _rate(self) -> float:
        """Return the work a second of a run, with iterations doubled until it is long enough."""
        while True:
            start = time.perf_counter_ns()
            work = self.run(self.iterations)
            seconds = (time.perf_counter_ns() - start) * 1e-9
            if seconds >= _LOOP_S / 2:
                break
            self.iterations *= 2
        return work / seconds
