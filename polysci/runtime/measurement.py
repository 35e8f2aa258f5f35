"""Timings of one schedule, with what is needed to read them; a JSON line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any, Final

from polysci.errors import SpecError
from polysci.target.target import HOST, Target

MIN_SAMPLE_S: Final = 2e-3
RECORDED: Final = "recorded"  # the protocol of what a record says
MOST_DROPPED: Final = 0.8  # of the samples: with more, the rest may be as disturbed, unnoticed
PEAK_COUNTS: Final = "% of peak: taps in the padding do not count; what fewer products save does"
LEAST_SPEED: Final = 0.85  # of the reference loop, in the middle sample


class DisturbanceShares:
    """The shares of a measurement that tell whether other work disturbed it too much."""

    __slots__ = ()
    dropped: float
    speed: float

    @property
    def disturbed(self) -> bool:
        """Tell whether too little of it was measured on a quiet machine to be believed."""
        return is_disturbed(self.dropped, self.speed)


@dataclass(frozen=True, slots=True)
class Measurement(DisturbanceShares):
    """Samples of one schedule, in seconds a call, with what is needed to read them.

    ``flops`` of one call, ``protocol`` how it was timed, ``host`` a ``host_digest``,
    ``peak_gflops`` the FMA peak of as many threads measured in the same run, if it was.
    ``dropped`` is the share of samples that something else disturbed, ``speed`` that of a loop of
    known work beside them, as a share of its best, if it ran. Of ``flops``, ``multiplied`` are not
    of taps in the padding; None: all. ``peak_disturbed``: other work disturbed the run of the peak.
    ``parse(str(m)) == m``; texts without the last four read as undisturbed and not padded. Raises
    ``SpecError`` for values that are no times.
    """

    seconds: tuple[float, ...]
    flops: int
    schedule: str
    protocol: str
    threads: int
    host: str
    peak_gflops: float | None = None
    dropped: float = 0.0
    speed: float = 1.0
    multiplied: int | None = None
    peak_disturbed: bool = False

    def __post_init__(self) -> None:
        if not self.seconds or not all(isfinite(s) and s > 0 for s in self.seconds):
            raise SpecError(f"seconds: expected positive numbers, got {self.seconds!r:.200}")

    def __str__(self) -> str:
        return json.dumps(asdict(self), allow_nan=False)

    @property
    def min(self) -> float:
        """The shortest sample, in seconds."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The middle sample, in seconds; the mean of the middle two if their number is even."""
        ordered, middle = sorted(self.seconds), len(self.seconds) // 2
        return (ordered[middle] + ordered[-middle - 1]) / 2

    @property
    def spread(self) -> float:
        """Interquartile range over median, which one disturbed sample cannot change much."""
        ordered, quarter = sorted(self.seconds), len(self.seconds) // 4
        return (ordered[-quarter - 1] - ordered[quarter]) / self.median

    @property
    def recorded(self) -> bool:
        """Tell whether it was taken from the records of an earlier search."""
        return self.protocol == RECORDED

    @property
    def gflops(self) -> float:
        """GFLOP/s at the median."""
        return self.flops / self.median * 1e-9

    @property
    def peak_fraction(self) -> float | None:
        """GFLOP/s over the FMA peak, taps in the padding left out; None where that is not known."""
        if self.peak_gflops is None:
            return None
        needed = self.flops if self.multiplied is None else self.multiplied
        return needed / self.median * 1e-9 / self.peak_gflops


def parse(text: str) -> Measurement:
    """Read ``str(measurement)`` back; unknown or missing members and bad types: ``SpecError``."""
    try:
        members = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"measurement: not JSON: {error}") from None
    names = [field.name for field in fields(Measurement)]
    if isinstance(members, dict):
        members = {**_LATER, **members}
    if not isinstance(members, dict) or sorted(members) != sorted(names):
        raise SpecError(f"measurement: expected the members {', '.join(names)}, got {text:.200}")
    for name, allowed in _TYPES.items():
        wrong = isinstance(members[name], bool) is not (allowed is bool)
        if wrong or not isinstance(members[name], allowed):
            raise SpecError(f"measurement: {name}: unexpected {members[name]!r:.80}")
    if not all(type(s) in (int, float) for s in members["seconds"]):
        raise SpecError(f"measurement: seconds: unexpected {members['seconds']!r:.80}")
    return Measurement(**members | {"seconds": tuple(map(float, members["seconds"]))})


_TYPES: Final[Mapping[str, Any]] = {
    "seconds": list,
    "flops": int,
    "schedule": str,
    "protocol": str,
    "threads": int,
    "host": str,
    "peak_gflops": (int, float, type(None)),
    "dropped": (int, float),
    "speed": (int, float),
    "multiplied": (int, type(None)),
    "peak_disturbed": bool,
}
_LATER: Final[Mapping[str, Any]] = {  # that texts of before lack
    "dropped": 0.0, "speed": 1.0, "multiplied": None, "peak_disturbed": False,
}  # fmt: skip


def is_disturbed(dropped: float, speed: float) -> bool:
    """Return whether a measurement with these shares is not to be believed."""
    return dropped > MOST_DROPPED or speed < LEAST_SPEED


def host_digest(description: str) -> str:
    """Return a short name for a kind of machine, from a text of its features and cores."""
    return hashlib.sha256(description.encode()).hexdigest()[:12]


def host_of(target: Target) -> str:
    """Return the name under which records of this machine, or of a device of it, are kept."""
    device = "" if target.backend == HOST else f" {target.model_name}"
    return host_digest(f"{target} {target.features}{device}")


def protocol(samples: int, min_sample_s: float = MIN_SAMPLE_S, cold: bool = False) -> str:
    """Return how ``Bench.time`` measures, in the words that records carry."""
    return f"{'cold' if cold else 'warm'} alternating {samples}x{min_sample_s * 1e3:g}ms"
