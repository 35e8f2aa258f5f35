"""One measured schedule as validated data: texts and numbers, never code or compiler flags."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Final

from polysci.border.arguments import check_type, describe
from polysci.runtime.measurement import DisturbanceShares

TRIAL: Final = "trial"  # tried by a search that chose another schedule: for training only
LEVELS: Final = (TRIAL, "estimate", "measure", "patient", "exhaustive")
_TEXT_LIMIT: Final = 4000  # characters


@dataclass(frozen=True, slots=True)
class Record(DisturbanceShares):
    """One measured schedule: ``seconds`` is the median of a call, ``gflops`` 0 when unknown.

    ``features`` is a canonical list of CPU features, ``host`` a digest of the machine,
    ``timestamp`` UTC as 2025-01-31T12:00:00Z. ``dropped`` is the share of samples that something
    else disturbed, ``spread`` the interquartile range over the median, ``speed`` that of a loop of
    known work beside the samples, as a share of its best. Raises ``ValueError`` for a bad type or
    range.
    """

    problem: str
    threads: int
    features: str
    host: str
    level: str
    schedule: str
    seconds: float
    gflops: float
    isa: str
    compiler: str
    version: str
    timestamp: str
    dropped: float = 0.0
    spread: float = 0.0
    speed: float = 1.0

    def __post_init__(self) -> None:
        self._texts("problem", "host", "schedule", low=1)
        self._texts("features", "level", "isa", "compiler", "version", "timestamp")
        self._number("threads", int, 1, 65536)
        self._number("seconds", float, 1e-9, 1e6)
        self._number("gflops", float, 0.0, 1e7)
        self._number("dropped", float, 0.0, 1.0)
        self._number("spread", float, 0.0, 1e6)
        self._number("speed", float, 0.0, 1.0)
        if self.level not in LEVELS:
            raise ValueError(
                f"level: expected one of {', '.join(LEVELS)}, got {describe(self.level)}"
            )
        try:
            datetime.strptime(self.timestamp, "%Y-%m-%dT%H:%M:%SZ")
        except ValueError:
            raise ValueError(
                f"timestamp: expected UTC as 2025-01-31T12:00:00Z, got {describe(self.timestamp)}"
            ) from None

    def __str__(self) -> str:
        mark = " (disturbed)" if self.disturbed else ""
        return (
            f"{self.problem} threads={self.threads} {self.gflops:.1f} GFLOP/s "
            f"{self.seconds * 1e6:.1f} us {self.level}{mark}: {self.schedule}"
        )

    def _texts(self, *names: str, low: int = 0) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, str):
                raise ValueError(f"{name}: expected a text, got {describe(value)}")
            if not low <= len(value) <= _TEXT_LIMIT or not value.isprintable():
                raise ValueError(
                    f"{name}: expected {low} to {_TEXT_LIMIT} printable characters, "
                    f"got {describe(value)}"
                )

    def _number(self, name: str, kind: type[int] | type[float], low: float, high: float) -> None:
        value = getattr(self, name)
        allowed = int if kind is int else (int, float)
        # NaN fails the comparison; a bool is an int to Python and nonsense here.
        if isinstance(value, bool) or not isinstance(value, allowed) or not low <= value <= high:
            raise ValueError(
                f"{name}: expected {kind.__name__} in {low:g}..{high:g}, got {describe(value)}"
            )
        object.__setattr__(self, name, kind(value))


COLUMNS: Final = tuple(field.name for field in fields(Record))
QUALITY: Final = {"dropped": 0.0, "spread": 0.0, "speed": 1.0}  # what records of schema 1 lack
KEY: Final = COLUMNS[:6]  # identify a record; the other columns are the measurement


def canonical_features(features: str | Iterable[str]) -> str:
    """Feature names, sorted and joined by spaces. Raises TypeError for what are no names."""
    try:
        names = features.replace(",", " ").split() if isinstance(features, str) else [*features]
    except Exception:  # whatever a caller's own object raises
        raise TypeError(f"features: expected names, got {describe(features)}") from None
    for name in names:
        check_type("features", name, str)
        if not name.isprintable():
            raise ValueError(f"features: expected printable names, got {describe(name)}")
    return " ".join(sorted(set(names)))
