"""A peer's worker process, as the parent sees it: found, started, asked, ended."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from polysci.errors import CheckError, SpecError, UnsupportedError
from polysci.peers import PEERS, Peer, Whole
from polysci.runtime.build.process import Child

_ROOT: Final = str(Path(__file__).resolve().parents[2])  # where the child finds this package


def peer_named(name: str, runs: Whole = "layers") -> Peer:
    """A row of PEERS that runs what is asked for, and whose package is installed.

    Raises SpecError for another name and UnsupportedError, with the remedy, where it is missing.
    """
    fitting = ", ".join(peer.name for peer in PEERS.values() if peer.runs == runs)
    if name not in PEERS:
        raise SpecError(f"peer {name!r}: expected one of {fitting}")
    peer = PEERS[name]
    if peer.runs != runs:
        raise SpecError(
            f"peer {name!r}: compares {peer.runs}, not {runs}: expected one of {fitting}"
        )
    if importlib.util.find_spec(peer.package) is None:
        raise UnsupportedError(f"the peer {name} is not installed: {peer.install}")
    return peer


class PeerProcess:
    """The process of one peer, from now until ``close`` or the end of a ``with`` block.

    ``module`` is what it runs, with the peer's name.
    """

    def __init__(
        self,
        peer: Peer,
        threads: int,
        env: Mapping[str, str],
        module: str = "polysci.peers",
    ) -> None:
        self.peer, self.threads = peer, threads
        path = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        limits = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
        self._child = Child(
            [sys.executable, "-P", "-m", module, peer.name],
            {**limits, "PYTHONPATH": os.pathsep.join(path), **env},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process; any number of times."""
        self._child.close()

    def ask(self, question: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """The answer, within ``timeout`` seconds.

        Raises UnsupportedError for what the peer does not have, else CheckError where it fails.
        """
        answer = self._child.ask(question, timeout)
        if "fault" in answer:
            if answer.get("unsupported"):
                raise UnsupportedError(str(answer["fault"]))
            raise CheckError(f"the peer {self.peer.name} failed: {answer['fault']}")
        return answer
