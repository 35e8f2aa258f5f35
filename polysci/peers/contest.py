"""Time our kernel and those of peers in turns, in worker processes that never run at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from types import MappingProxyType
from typing import Any, Final

from polysci.errors import SpecError
from polysci.measure.bench import Bench, Candidate, cold_size
from polysci.measure.samples import MOST_TURNS, Sample, Samples, fastest
from polysci.ops.problem import Problem
from polysci.peers.process import FAILURES, SAMPLE_S, WARM_UP_S, LayerRival
from polysci.space.schedule import Schedule

LEAST_ROUNDS: Final = 9
ROUNDS: Final = 15
_OURS: Final = ""  # in place of a peer's name
PEAK_UNITS: Final[Mapping[str, str]] = MappingProxyType(  # by how inner products are computed
    {
        "f32": "FMA",
        "f16": "FMA",
        "bf16": "bf16 dot product",
        "i16": "16-bit dot product",
        "i8": "8-bit dot product",
    }
)


@dataclass(frozen=True, slots=True)
class PeerTimes:
    """Samples of a peer, in seconds a call: on warm caches, and with weights from memory.

    ``path`` is its fastest call, ``version`` its version, ``paths`` the least seconds of all its
    calls. Where the peer lacks the layer, or fails, ``path`` says why, and it has no samples and no
    version. Other work disturbed the share ``dropped`` of its samples, and with ``disturbed`` too
    many.
    """

    name: str
    path: str
    version: str = ""
    paths: Mapping[str, float] = field(default_factory=dict)
    seconds: tuple[float, ...] = ()
    cold: tuple[float, ...] = ()
    disturbed: bool = False
    dropped: float = 0.0

    @property
    def median(self) -> float | None:
        """The median time; None where it lacks the layer."""
        return _median(self.seconds)

    @property
    def cold_median(self) -> float | None:
        """The median time with cold weights; None where that is not known."""
        return _median(self.cold)

    def best_with(self, again: PeerTimes) -> PeerTimes:
        """The samples with the lesser median of two runs, warm and cold each."""
        seconds = _lesser(self.seconds, again.seconds)
        chosen = again if seconds and seconds is not self.seconds else self
        return replace(chosen, cold=_lesser(self.cold, again.cold))


@dataclass(frozen=True, slots=True)
class LayerComparison:
    """Samples of ours and of the peers', in seconds a call, taken in turns.

    ``peak_gflops`` is the peak of all threads, of the instructions that ``unit`` names. ``cold``
    has samples with weights from memory, if they were asked for. ``repeats`` tells of how many runs
    these samples are the best ones. ``disturbed`` and ``dropped`` are of our samples as of a
    peer's; ``peak_disturbed``: other work disturbed every run of the probe of the peak.
    """

    problem: Problem
    seconds: tuple[float, ...]
    peers: tuple[PeerTimes, ...]
    peak_gflops: float
    unit: str
    cold: tuple[float, ...] = ()
    repeats: int = 1
    disturbed: bool = False
    dropped: float = 0.0
    peak_disturbed: bool = False

    def best_with(self, again: LayerComparison) -> LayerComparison:
        """Every side's samples with the lesser median of two runs: what disturbs adds time."""
        peers = zip(self.peers, again.peers, strict=True)
        chosen = again if _lesser(self.seconds, again.seconds) is again.seconds else self
        return replace(
            chosen, peers=tuple(peer.best_with(other) for peer, other in peers),
            peak_gflops=max(self.peak_gflops, again.peak_gflops),
            peak_disturbed=self.peak_disturbed and again.peak_disturbed,
            cold=_lesser(self.cold, again.cold), repeats=self.repeats + again.repeats,
        )  # fmt: skip

    @property
    def gflops(self) -> float:
        """Our GFLOP/s at the median."""
        return self.problem.flops / median(self.seconds) * 1e-9

    @property
    def peak_fraction(self) -> float:
        """GFLOP/s over the peak, taps in the padding left out."""
        rate = self.problem.multiplied_flops / median(self.seconds) * 1e-9
        return rate / self.peak_gflops

    @property
    def fastest(self) -> PeerTimes | None:
        """The peer with the least median time; None where all lack the layer."""
        running = [peer for peer in self.peers if peer.seconds]
        return min(running, key=lambda peer: median(peer.seconds), default=None)

    @property
    def ratio(self) -> float | None:
        """The fastest peer's median time over ours: above 1 where ours is faster."""
        return None if self.fastest is None else self.ratio_to(self.fastest)

    def ratio_to(self, peer: PeerTimes) -> float | None:
        """A peer's median time over ours; None where it lacks the layer."""
        return peer.median and peer.median / median(self.seconds)

    @property
    def cold_ratio(self) -> float | None:
        """The ratio with cold weights, to the peer that is the fastest then."""
        least = min((peer.cold_median for peer in self.peers if peer.cold_median), default=None)
        return least and least / median(self.cold)

    def row(self) -> dict[str, Any]:
        """The numbers as JSON members: of the fastest peer, and of several peers each."""
        fastest = self.fastest or self.peers[0]
        return {
            "layer": self.problem.name or str(self.problem),
            "seconds": median(self.seconds),
            "gflops": self.gflops,
            "peak_gflops": self.peak_gflops,
            "peak_fraction": self.peak_fraction,
            "peak_unit": self.unit,
            "disturbed": self.disturbed,
            "dropped": self.dropped,
            "peak_disturbed": self.peak_disturbed,
            "peer_seconds": fastest.median,
            "peer_disturbed": fastest.disturbed,
            "peer_dropped": fastest.dropped,
            "peer_version": fastest.version,
            "ratio": self.ratio,
            "path": fastest.path,
            "peer_paths": dict(fastest.paths),
            "rounds": len(self.seconds),
            "repeats": self.repeats,
            "multiplicity": self.problem.multiplicity,
            "problem": str(self.problem),
            "layout": self.problem.layout,
            "dtype": self.problem.dtype,
            **(self._cold_row(fastest) if self.cold else {}),
            **({"peer": fastest.name, "peers": self._peer_rows()} if len(self.peers) > 1 else {}),
        }

    def _cold_row(self, peer: PeerTimes) -> dict[str, Any]:
        return {
            "cold_seconds": median(self.cold),
            "peer_cold_seconds": peer.cold_median,
            "cold_ratio": self.cold_ratio,
        }

    def _peer_rows(self) -> dict[str, Any]:
        return {
            peer.name: {
                "version": peer.version,
                "seconds": peer.median,
                "disturbed": peer.disturbed,
                "dropped": peer.dropped,
                "ratio": self.ratio_to(peer),
                "path": peer.path,
                "paths": dict(peer.paths),
                **({"cold_seconds": peer.cold_median} if self.cold else {}),
            }
            for peer in self.peers
        }


def compare(
    problem: Problem,
    candidate: Candidate,
    peak: Candidate,
    rivals: Sequence[LayerRival],
    *,
    unit: str = PEAK_UNITS["f32"],
    rounds: int = ROUNDS,
    schedule: Schedule | None = None,
    cold: bool = False,
) -> LayerComparison:
    """Time a compiled candidate and the rivals in turns; all are checked first.

    ``schedule`` is the candidate's, for the check. ``peak`` is the probe of the peak of ``unit``,
    run before and after. ``cold`` takes samples with weights from memory as well: successive calls
    use copies that together exceed the last-level cache. A rival that lacks the layer is not timed,
    one that fails not any more. A side whose samples other work disturbed takes further turns,
    MOST_TURNS times the rounds in all. Raises SpecError for fewer than LEAST_ROUNDS and CheckError
    where ours fails.
    """
    if rounds < LEAST_ROUNDS:
        raise SpecError(f"rounds={rounds}: expected at least {LEAST_ROUNDS}")
    size = cold_size() if cold else 0
    peers = [_prepare(rival, problem, size) for rival in rivals]
    takes: dict[tuple[str, bool], Callable[[], Sample]] = {}
    with Bench(problem, rivals[0].threads) as bench:
        bench.check(*candidate, schedule)
        bench.watch(*peak)
        peaks = [bench.peak(*peak)]
        for from_memory in (False, True)[: 1 + cold]:
            copies = size if from_memory else 0
            handle = bench.load(candidate, SAMPLE_S, copies, weights_only=True)
            takes[_OURS, from_memory] = partial(bench.sample, candidate, handle, WARM_UP_S)
            for rival, peer in zip(rivals, peers, strict=True):
                if peer.version:
                    takes[peer.name, from_memory] = partial(rival.sample, from_memory)
        samples, failed = _take_turns(takes, rounds)
        peaks.append(bench.peak(*peak))
    timed = tuple(
        PeerTimes(peer.name, failed[peer.name])
        if peer.name in failed
        else replace(peer, **_members(samples, peer.name))
        for peer in peers
    )
    best = fastest(peaks)
    gflops = 1e-9 / best.seconds * rivals[0].threads
    return LayerComparison(
        problem, peers=timed, peak_gflops=gflops, unit=unit, peak_disturbed=best.disturbed,
        **_members(samples, _OURS),
    )  # fmt: skip


def _prepare(rival: LayerRival, problem: Problem, cold_bytes: int) -> PeerTimes:
    """The peer's fastest path, without samples; or why it has none."""
    name = rival.peer.name
    if not rival.accepts(problem):
        return PeerTimes(name, f"{name}: no such operator here")
    try:
        return PeerTimes(name, *rival.prepare(problem, cold_bytes))
    except FAILURES as error:
        return PeerTimes(name, f"{name}: {error}")


def _members(samples: Mapping[tuple[str, bool], Samples], side: str) -> dict[str, Any]:
    """The members that tell of a side's samples, warm and cold; none for one without samples."""
    taken = [samples[side, cold] for cold in (False, True) if (side, cold) in samples]
    if not taken:
        return {}
    return {
        "seconds": taken[0].seconds,
        "cold": taken[1].seconds if taken[1:] else (),
        "disturbed": any(its.disturbed for its in taken),
        "dropped": max(its.dropped for its in taken),
    }


def _take_turns(
    takes: Mapping[tuple[str, bool], Callable[[], Sample]], rounds: int
) -> tuple[dict[tuple[str, bool], Samples], dict[str, str]]:
    """Samples of every side, one in every round; each second round goes backwards.

    Further rounds are for the sides that other work disturbed. Then, by name, why peers failed:
    they get no further turn.
    """
    samples = {side: Samples() for side in takes}
    failed = dict[str, str]()
    for turn in range(MOST_TURNS * rounds):
        for side in list(takes)[:: 1 if turn % 2 == 0 else -1]:
            if side[0] in failed or samples[side].enough(rounds):
                continue
            try:
                samples[side].add(takes[side]())
            except FAILURES as error:
                if side[0] == _OURS:
                    raise
                failed[side[0]] = f"{side[0]}: {error}"
    return samples, failed


def _lesser(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    """The samples with the lesser median; the first ones if equal, or if the others are none."""
    return min((samples for samples in (one, other) if samples), key=median, default=())


def _median(seconds: tuple[float, ...]) -> float | None:
    return median(seconds) if seconds else None
