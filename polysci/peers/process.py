"""Peers' worker processes, as the parent sees them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from polysci.errors import CheckError, SpecError, UnsupportedError
from polysci.measure.samples import Sample
from polysci.ops import OPS
from polysci.ops.problem import Problem
from polysci.peers import PEERS, Peer, Scope
from polysci.runtime.worker_process import WorkerProcess
from polysci.text.names import suggest

WARM_UP_S: Final = 5e-3  # idle OpenMP threads of the other process spin for some milliseconds
SAMPLE_S: Final = 5e-3
_PREPARE_S: Final = 600.0
# Results that are freed stay in the heap: otherwise every large one costs page faults again.
_HEAP: Final = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
_SPIN: Final = "GOMP_SPINCOUNT"
_SPIN_LOOPS: Final = "300000"  # GNU OpenMP's own default, which our loader lowers where it is unset
FAILURES: Final = (CheckError, UnsupportedError)  # of one peer; the others are timed without it


def peer_named(name: str, runs: Scope = "layers") -> Peer:
    """A row of PEERS that runs what is asked for, and whose package, if any, is installed.

    Raises SpecError for another name and UnsupportedError, with the remedy, where it is missing.
    """
    names = [peer.name for peer in PEERS.values() if peer.runs == runs]
    fitting = ", ".join(names)
    if name not in PEERS:
        raise SpecError(f"peer {name!r}: expected one of {fitting}{suggest(name, names)}")
    peer = PEERS[name]
    if peer.runs != runs:
        raise SpecError(
            f"peer {name!r}: compares {peer.runs}, not {runs}: expected one of {fitting}"
        )
    if peer.package and importlib.util.find_spec(peer.package) is None:
        raise UnsupportedError(f"the peer {name} is not installed: {peer.install}")
    return peer


class PeerProcess(WorkerProcess):
    """The process of one peer; ``module`` is what it runs, with the peer's name."""

    def __init__(
        self,
        peer: Peer,
        threads: int,
        *,
        timeout: float,
        env: Mapping[str, str] = MappingProxyType({}),
        module: str = "polysci.peers",
    ) -> None:
        self.peer = peer
        super().__init__(
            module, peer.name,
            threads=threads, env=env, timeout=timeout, name=f"the peer {peer.name}",
        )  # fmt: skip


class LayerRival(PeerProcess):
    """A peer's worker process, started once for many problems.

    ``library`` names the file of a peer that takes one. Raises SpecError for another peer.
    """

    def __init__(
        self, peer: Peer, threads: int = 1, *, library: str | None = None, timeout: float = 120.0
    ) -> None:
        if library is not None and not peer.takes_library:
            raise SpecError(f"library {library!r}: the peer {peer.name} takes none")
        self._library = {"library": library} if peer.takes_library else {}
        env = {**_HEAP, _SPIN: os.environ.get(_SPIN, _SPIN_LOOPS)}
        super().__init__(peer, threads, env=env, timeout=timeout)

    def open(self) -> None:
        """Load the library of a peer that takes one. Raises UnsupportedError for none."""
        if self.peer.takes_library:
            self.start()
            self.ask({"op": "open", **self._library})

    def accepts(self, problem: Problem) -> bool:
        """Return whether the peer has the problem's operator."""
        return isinstance(problem, tuple(OPS[name].problem for name in self.peer.operators))

    def prepare(self, problem: Problem, cold_bytes: int = 0) -> tuple[str, str, dict[str, float]]:
        """Check the peer's result, choose its fastest path.

        With ``cold_bytes`` samples of cold weights are possible: copies of so many bytes in all.
        Returns that path, the version, and the least seconds that every path took on trial.
        """
        self.start()
        settings: dict[str, Any] = {"layout": problem.layout, "dtype": problem.dtype}
        question = {"op": "prepare", "problem": str(problem), "threads": self.threads, "seed": 0}
        prepared = self.ask(question | settings | self._library, _PREPARE_S)
        options = {"min_sample_s": SAMPLE_S, "cold_bytes": cold_bytes}
        loaded = self.ask({"op": "load", **options}, _PREPARE_S)
        paths = {str(name): float(seconds) for name, seconds in loaded["seconds"].items()}
        return str(loaded["path"]), str(prepared["version"]), paths

    def sample(self, cold: bool = False) -> Sample:
        """One sample, in seconds a call, after a warm-up; ``cold`` with weights from memory."""
        question = {"op": "sample", "warm_up_s": WARM_UP_S, "cold": cold}
        return Sample(**self.ask(question))
