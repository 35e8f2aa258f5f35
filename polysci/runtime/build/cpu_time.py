"""The time that a program of our own gets, told by the CPU time of all of its processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MOST_OF_CLOCK: Final = 10  # limits that a program may take by the clock, on whatever machine
ASLEEP_S: Final = 5.0  # without work, once the limit has passed by the clock
_TICK: Final = 1 / os.sysconf("SC_CLK_TCK")
_ASLEEP: Final = "SIZX"  # states of processes that wait for no core, no disk and no signal


@dataclass(slots=True)
class WorkLimit:
    """Limit of the time that a session's processes may work, in seconds; it begins with them."""

    session: int
    seconds: float
    start: float = field(default_factory=time.monotonic)
    _worked: float = 0.0
    _awake: float = 0.0  # when they last did something

    def passed(self) -> str | None:
        """Name what they had too much of, empty for time by the clock; None while they may go on.

        Ask several times a second once ``seconds`` are over.
        """
        now, worked, asleep = time.monotonic(), 0.0, True
        for state, spent in _processes(self.session):
            worked += spent
            asleep &= state in _ASLEEP
        if worked >= self.seconds:
            return " of CPU time"
        if worked > self._worked or not asleep or not self._awake:
            self._worked, self._awake = max(worked, self._worked), now
        if now - self._awake >= min(ASLEEP_S, self.seconds):
            return " without working"
        return "" if now - self.start >= MOST_OF_CLOCK * self.seconds else None


def _processes(session: int) -> Iterator[tuple[str, float]]:
    """State, and CPU time of its own and of the children that it waited for, of each."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_bytes().rpartition(b")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[3]) == session:
            yield fields[0].decode(), sum(map(int, fields[11:15])) * _TICK
