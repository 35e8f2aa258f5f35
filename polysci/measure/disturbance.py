"""What else used the processor while a sample ran: the kernel's counters, and a reference loop.

Linux counts, for every thread, the time that it was ready but waited for a processor
(``/proc/PID/task/TID/schedstat``, its second number, in nanoseconds), and, for the machine, the
time that a hypervisor gave to others (``steal`` in ``/proc/stat``, in clock ticks). Neither shows a
neighbour that shares a core's units or its power; a loop of known work before and after does.
Where a counter does not exist it stays at zero.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TASKS: Final = Path("/proc/self/task")
_MACHINE: Final = Path("/proc/stat")
_STEAL: Final = 8  # the word of the first line, after "cpu"
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_LOOP_S: Final = 5e-5  # of the reference loop
_RUNS: Final = 4  # of it: a wait for a processor lengthens one of them, a neighbour all
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

    def waited_since(self, earlier: Counters) -> float:
        """What the threads of this reading waited after an earlier one; new ones in all."""
        return sum(
            seconds - before if seconds >= (before := earlier.waits.get(thread, 0.0)) else seconds
            for thread, seconds in self.waits.items()
        )  # less than before: a new thread has the number of one that has ended

    def stolen_since(self, earlier: Counters) -> float:
        """What others had of the machine after an earlier reading."""
        return self.stolen - earlier.stolen


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

    ``run(iterations)`` does work in proportion, and returns it. ``best`` is the most that it did a
    second, so far.
    """

    run: Callable[[int], float]
    iterations: int = 1000
    best: float = 0.0

    def speed(self) -> float:
        """The speed of some runs, the best of them, as a share of the best so far."""
        fastest = 0.0
        for _ in range(_RUNS):
            fastest = max(fastest, self._rate())
            self.best = max(self.best, fastest)
            if fastest >= FULL_SPEED * self.best:
                break
        return fastest / self.best

    def _rate(self) -> float:
        """What one run does a second."""
        while True:
            start = time.perf_counter_ns()
            work = self.run(self.iterations)
            seconds = (time.perf_counter_ns() - start) * 1e-9
            if seconds >= _LOOP_S / 2:
                break
            self.iterations *= 2
        return work / seconds
