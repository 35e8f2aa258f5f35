"""Time our network and the peers' in turns, one process at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType
from typing import Any, Final, Protocol

from polysci.errors import CheckError, SpecError
from polysci.measure.network_samples import PAUSE_S
from polysci.numerics.differences import Difference, compare_outputs
from polysci.peers.contest import LEAST_ROUNDS, ROUNDS
from polysci.peers.networks.service import Array
from polysci.peers.process import FAILURES

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
    """One contestant's samples in seconds a run, and how far ours are from its outputs."""

    seconds: tuple[float, ...]
    version: str
    choice: str
    peak_bytes: int
    difference: Difference = field(default_factory=Difference)

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
            "max_error": self.difference.number,
            "non_finite": {"alike": self.difference.alike, "apart": self.difference.apart},
            "seconds": list(self.seconds),
        }


@dataclass(frozen=True, slots=True)
class NetworkComparison:
    """Samples of our network and of each peer's, taken in turns.

    ``failures`` says of peers without samples why they have none.
    """

    ours: ContestResult
    rivals: Mapping[str, ContestResult]
    failures: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def latency_ms(self) -> float:
        """Milliseconds a run of ours, at the median."""
        return self.ours.latency_ms

    @property
    def peers(self) -> dict[str, float]:
        """Milliseconds a run of each peer's, at the median."""
        return {name: result.latency_ms for name, result in self.rivals.items()}

    @property
    def fastest(self) -> str | None:
        """The name of the fastest peer; None where all failed."""
        return min(self.peers, key=lambda name: (self.peers[name], name), default=None)

    @property
    def ratio(self) -> float | None:
        """The fastest peer's median over ours: above 1 where ours is faster."""
        return None if self.fastest is None else self.peers[self.fastest] / self.latency_ms

    @property
    def max_error(self) -> float | None:
        """The largest error against any peer; None where one has none."""
        errors = [result.difference.number for result in self.rivals.values()]
        known = [error for error in errors if error is not None]
        return max(known) if known and len(known) == len(errors) else None

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
            "failures": dict(self.failures),
        }


def compare(
    ours: Contestant,
    rivals: Mapping[str, Contestant],
    rounds: int = ROUNDS,
    *,
    failures: Mapping[str, str] = MappingProxyType({}),
    pause_s: float = PAUSE_S,
    progress: Callable[[int, int], None] | None = None,
) -> NetworkComparison:
    """Compare outputs, then time every contestant once a round; rounds start with each in turn.

    Waits ``pause_s`` before each sample: idle threads of the previous one may spin that long. A
    rival that fails, or has outputs of another number or shape, joins ``failures`` and gets no
    further turn. Raises SpecError for no rival or fewer than LEAST_ROUNDS rounds, CheckError where
    ours fails.
    """
    if not rivals and not failures:
        raise SpecError("no peer to compare with")
    if rounds < LEAST_ROUNDS:
        raise SpecError(f"rounds={rounds}: expected at least {LEAST_ROUNDS}")
    failed, differences = dict(failures), dict[str, Difference]()
    for name, rival in rivals.items():
        try:
            differences[name] = compare_outputs(ours.outputs, rival.outputs, name)
        except CheckError as error:
            failed[name] = str(error)
    contestants: dict[str, Contestant] = {OURS: ours, **rivals}
    order = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in order}
    for turn in range(rounds):
        if progress:
            progress(turn, rounds)
        first = turn % len(order)
        for name in order[first:] + order[:first]:
            if name not in failed:
                _take_turn(name, contestants[name], pause_s, seconds[name], failed)
    results = {
        name: ContestResult(
            tuple(seconds[name]),
            contestant.version,
            contestant.choice,
            contestant.peak_bytes,
            differences.get(name, Difference()),
        )
        for name, contestant in contestants.items()
        if name not in failed
    }
    return NetworkComparison(results.pop(OURS), results, failed)


def _take_turn(
    name: str, contestant: Contestant, pause_s: float, seconds: list[float], failed: dict[str, str]
) -> None:
    """Add a sample, or to ``failed`` why there is none."""
    time.sleep(pause_s)
    try:
        seconds.append(contestant.sample())
    except FAILURES as error:
        if name == OURS:
            raise
        failed[name] = str(error)
