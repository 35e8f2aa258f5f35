"""Time our network and the peers' in turns, one process at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, Protocol

import numpy as np

from polysci.errors import CheckError, SpecError
from polysci.peers.contest import LEAST_ROUNDS, ROUNDS
from polysci.peers.networks.service import PAUSE_S, Array

OURS: Final = "polysci"


class Contestant(Protocol):
    """A loaded network, ours or a peer's; ``outputs`` are those of one run, in the model's order.

    ``choice`` is its setting, ``peak_bytes`` the memory that loading and the first runs added.
    """

    @property
    def outputs(self) -> Sequence[Array]: ...
    @property
    def version(self) -> str: ...
    @property
    def choice(self) -> str: ...
    @property
    def peak_bytes(self) -> int: ...

    def sample(self) -> float:
        """Seconds a run, after runs of ``WARM_UP_S``."""


@dataclass(frozen=True, slots=True)
class ContestResult:
    """One contestant's samples in seconds a run, and the error of its outputs against ours.

    ``error`` is max |ours - its| / max(1, max |its|), the largest of all outputs.
    """

    seconds: tuple[float, ...]
    version: str
    choice: str
    peak_bytes: int
    error: float = 0.0

    @property
    def latency_ms(self) -> float:
        """Milliseconds a run at the median."""
        return median(self.seconds) * 1e3

    def row(self) -> dict[str, Any]:
        """The numbers as JSON members."""
        return {
            "latency_ms": self.latency_ms,
            "version": self.version,
            "choice": self.choice,
            "peak_bytes": self.peak_bytes,
            "max_error": self.error,
            "seconds": list(self.seconds),
        }


@dataclass(frozen=True, slots=True)
class NetworkComparison:
    """Samples of our network and of each peer's, taken in turns."""

    ours: ContestResult
    rivals: Mapping[str, ContestResult]

    @property
    def latency_ms(self) -> float:
        """Milliseconds a run of ours, at the median."""
        return self.ours.latency_ms

    @property
    def peers(self) -> dict[str, float]:
        """Milliseconds a run of each peer's, at the median."""
        return {name: result.latency_ms for name, result in self.rivals.items()}

    @property
    def fastest(self) -> str:
        """The name of the fastest peer."""
        return min(self.peers, key=lambda name: (self.peers[name], name))

    @property
    def ratio(self) -> float:
        """The fastest peer's median over ours: above 1 where ours is faster."""
        return self.peers[self.fastest] / self.latency_ms

    @property
    def max_error(self) -> float:
        """The largest error against any peer."""
        return max(result.error for result in self.rivals.values())

    def row(self) -> dict[str, Any]:
        """The numbers as JSON members."""
        return {
            "latency_ms": self.latency_ms,
            "ratio": self.ratio,
            "fastest_peer": self.fastest,
            "max_error": self.max_error,
            "rounds": len(self.ours.seconds),
            "ours": self.ours.row(),
            "peers": {name: result.row() for name, result in self.rivals.items()},
        }


def compare(
    ours: Contestant,
    rivals: Mapping[str, Contestant],
    rounds: int = ROUNDS,
    *,
    pause_s: float = PAUSE_S,
    progress: Callable[[int, int], None] | None = None,
) -> NetworkComparison:
    """Compare outputs, then time every contestant once a round; rounds start with each in turn.

    Waits ``pause_s`` before each sample: idle threads of the previous one may spin that long.
    Raises SpecError for no rival or fewer than LEAST_ROUNDS rounds, CheckError where a rival has
    outputs of another number or shape, or fails.
    """
    if not rivals:
        raise SpecError("no peer to compare with")
    if rounds < LEAST_ROUNDS:
        raise SpecError(f"rounds={rounds}: expected at least {LEAST_ROUNDS}")
    errors = {
        name: largest_error(ours.outputs, rival.outputs, name) for name, rival in rivals.items()
    }
    contestants: dict[str, Contestant] = {OURS: ours, **rivals}
    order = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in order}
    for turn in range(rounds):
        if progress:
            progress(turn, rounds)
        first = turn % len(order)
        for name in order[first:] + order[:first]:
            time.sleep(pause_s)
            seconds[name].append(contestants[name].sample())
    results = {
        name: ContestResult(
            tuple(seconds[name]),
            contestant.version,
            contestant.choice,
            contestant.peak_bytes,
            errors.get(name, 0.0),
        )
        for name, contestant in contestants.items()
    }
    return NetworkComparison(results.pop(OURS), results)


def largest_error(ours: Sequence[Array], theirs: Sequence[Array], name: str = "the peer") -> float:
    """max |ours - theirs| / max(1, max |theirs|), the largest of all outputs; a NaN is infinite.

    Infinities and NaNs in the same places are equal. Raises CheckError where numbers or shapes of
    outputs differ.
    """
    if len(ours) != len(theirs):
        raise CheckError(f"{name} has {len(theirs)} outputs, ours are {len(ours)}")
    worst = 0.0
    for index, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        if own.shape != other.shape:
            raise CheckError(
                f"output {index} of {name} has shape {list(other.shape)}, ours {list(own.shape)}"
            )
        worst = max(worst, _error(own.astype(np.float64), other.astype(np.float64)))
    return worst


def _error(own: Array, other: Array) -> float:
    differ = ~((own == other) | (np.isnan(own) & np.isnan(other)))
    if not np.any(differ):
        return 0.0
    if not np.all(np.isfinite(own[differ]) & np.isfinite(other[differ])):
        return float("inf")
    largest = float(np.max(np.abs(other[np.isfinite(other)])))
    return float(np.max(np.abs(own[differ] - other[differ]))) / max(1.0, largest)
