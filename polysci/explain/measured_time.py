"""A measured time, with what one must know to believe it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MeasuredTime:
    """Seconds of one call; ``recorded``: taken from the record of an earlier search.

    ``dropped`` is the share of its samples that other work disturbed, ``speed`` that of a loop of
    known work beside them, as a share of its best. A ``disturbed`` time is not to be believed.
    """

    seconds: float
    recorded: bool = False
    dropped: float = 0.0
    speed: float = 1.0
    disturbed: bool = False

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on its origin and why it is not to be believed; empty for a clean new one."""
        return (*["from a record"] * self.recorded, *[self.disturbance] * self.disturbed)

    @property
    def disturbance(self) -> str:
        """The disturbance in words; empty for a time that may be believed."""
        if not self.disturbed:
            return ""
        slow = f"; a loop of known work ran at {100 * self.speed:.0f} % of its speed"
        dropped = f"disturbed: {100 * self.dropped:.0f} % of the samples dropped"
        return dropped + (slow if self.speed < 1 else "")


def quality_members(measured: MeasuredTime | None) -> dict[str, Any]:
    """Return the quality of a measured time as JSON members; None where nothing was measured."""
    names = ("recorded", "disturbed", "dropped")
    return {name: None if measured is None else getattr(measured, name) for name in names}
