"""Time our kernel and a peer's in turns, in two worker processes that never run at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, log
from statistics import median
from types import MappingProxyType
from typing import Any, Final

from polysci.errors import SpecError
from polysci.measure.bench import Bench, Candidate
from polysci.ops import OPS
from polysci.ops.problem import Problem
from polysci.peers import Peer
from polysci.peers.process import PeerProcess
from polysci.polyhedral.schedule import Schedule

LEAST_ROUNDS: Final = 9
ROUNDS: Final = 15
PEAK_UNITS: Final[Mapping[str, str]] = MappingProxyType(  # by how inner products are computed
    {
        "f32": "FMA",
        "f16": "FMA",
        "bf16": "bf16 dot product",
        "i16": "16-bit dot product",
        "i8": "8-bit dot product",
    }
)
WARM_UP_S: Final = 5e-3  # idle OpenMP threads of the other process spin for some milliseconds
SAMPLE_S: Final = 5e-3
_PREPARE_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Samples of ours and of the peer's, in seconds a call, taken in turns.

    ``peak_gflops`` is the peak of all threads, of the instructions that ``unit`` names; ``path`` is
    the peer's fastest call, ``version`` its version, ``paths`` the least seconds of all its calls.
    Where the peer lacks the operator, ``path`` says so, and it has no samples and no version.
    """

    problem: Problem
    seconds: tuple[float, ...]
    peer_seconds: tuple[float, ...]
    peak_gflops: float
    path: str
    version: str
    unit: str
    paths: Mapping[str, float]

    @property
    def gflops(self) -> float:
        """Our GFLOP/s at the median."""
        return self.problem.flops / median(self.seconds) * 1e-9

    @property
    def peak_fraction(self) -> float:
        """GFLOP/s over the peak."""
        return self.gflops / self.peak_gflops

    @property
    def peer_median(self) -> float | None:
        """The peer's median time; None where it lacks the operator."""
        return median(self.peer_seconds) if self.peer_seconds else None

    @property
    def ratio(self) -> float | None:
        """The peer's median time over ours: above 1 where ours is faster."""
        peer = self.peer_median
        return None if peer is None else peer / median(self.seconds)

    def row(self) -> dict[str, Any]:
        """The numbers as JSON members."""
        return {
            "layer": self.problem.name or str(self.problem),
            "seconds": median(self.seconds),
            "gflops": self.gflops,
            "peak_gflops": self.peak_gflops,
            "peak_fraction": self.peak_fraction,
            "peak_unit": self.unit,
            "peer_seconds": self.peer_median,
            "ratio": self.ratio,
            "path": self.path,
            "peer_paths": dict(self.paths),
            "rounds": len(self.seconds),
            "multiplicity": self.problem.multiplicity,
            "problem": str(self.problem),
            "layout": self.problem.layout,
            "dtype": self.problem.dtype,
        }


def geomean(values: list[float]) -> float:
    """The geometric mean of positive numbers."""
    return exp(sum(map(log, values)) / len(values))


class LayerRival(PeerProcess):
    """A peer's worker process, started once for many problems."""

    def __init__(self, peer: Peer, threads: int = 1, *, timeout: float = 120.0) -> None:
        # Keep freed results in the heap: otherwise every large one costs page faults again.
        heap = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
        super().__init__(peer, threads, env=heap, timeout=timeout)

    def accepts(self, problem: Problem) -> bool:
        """Whether the peer has the problem's operator."""
        return isinstance(problem, tuple(OPS[name].problem for name in self.peer.operators))

    def prepare(self, problem: Problem) -> tuple[str, str, dict[str, float]]:
        """Check the peer's result, choose its fastest path.

        Returns that path, the version, and the least seconds that every path took on trial.
        """
        self.start()
        words = {"problem": str(problem), "layout": problem.layout, "dtype": problem.dtype}
        prepared = self.ask(
            {"op": "prepare", "threads": self.threads, "seed": 0, **words}, _PREPARE_S
        )
        loaded = self.ask({"op": "load", "min_sample_s": SAMPLE_S}, _PREPARE_S)
        paths = {str(name): float(seconds) for name, seconds in loaded["seconds"].items()}
        return str(loaded["path"]), str(prepared["version"]), paths

    def sample(self) -> float:
        """One sample, in seconds a call, after a warm-up."""
        return float(self.ask({"op": "sample", "warm_up_s": WARM_UP_S})["seconds"])


def compare(
    problem: Problem,
    candidate: Candidate,
    peak: Candidate,
    rival: LayerRival,
    *,
    unit: str = PEAK_UNITS["f32"],
    rounds: int = ROUNDS,
    schedule: Schedule | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Time a compiled candidate and the rival in turns; both are checked first.

    ``schedule`` is the candidate's, for the check. ``peak`` is the probe of the peak of ``unit``,
    run before and after. Ours is timed alone where the rival lacks the operator. Raises SpecError
    for fewer than LEAST_ROUNDS and CheckError where either side fails.
    """
    if rounds < LEAST_ROUNDS:
        raise SpecError(f"rounds={rounds}: expected at least {LEAST_ROUNDS}")
    accepted = rival.accepts(problem)
    lacking = f"{rival.peer.name}: no such operator here", "", dict[str, float]()
    path, version, paths = rival.prepare(problem) if accepted else lacking
    ours, theirs = list[float](), list[float]()
    with Bench(problem, rival.threads) as bench:
        bench.check(*candidate, schedule)
        peaks = [bench.peak(*peak)]
        handle = bench.load(candidate, SAMPLE_S)
        for turn in range(rounds):
            if progress:
                progress(turn, rounds)
            sides: list[Callable[[], None]] = [
                lambda: ours.append(bench.sample(candidate, handle, WARM_UP_S).seconds)
            ]
            sides += [lambda: theirs.append(rival.sample())] if accepted else []
            for take in sides if turn % 2 == 0 else reversed(sides):
                take()
        peaks.append(bench.peak(*peak))
    gflops = max(peaks) * rival.threads
    return Comparison(problem, tuple(ours), tuple(theirs), gflops, path, version, unit, paths)
