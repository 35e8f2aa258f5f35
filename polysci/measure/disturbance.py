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

    ``run(iterations)`` does work in proportion. ``speed`` is that of the last run, as a share of
    the best so far.
    """

    run: Callable[[int], object]
    iterations: int = 1000
    best: float = 0.0  # iterations a second

    def speed(self) -> float:
        while True:
            start = time.perf_counter_ns()
            self.run(self.iterations)
            seconds = (time.perf_counter_ns() - start) * 1e-9
            if seconds >= _LOOP_S / 2:
                break
            self.iterations *= 2
        rate = self.iterations / seconds
        self.best = max(self.best, rate)
        return rate / self.best
