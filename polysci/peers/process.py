"""A peer's worker process, as the parent sees it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from polysci.errors import CheckError, SpecError, UnsupportedError
from polysci.peers import PEERS, Peer, Scope
from polysci.runtime.worker_process import WorkerProcess
from polysci.text.names import suggest

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
