"""Other libraries, timed beside ours: each in a worker process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Peer:
    """A library to compare with: its service ``module:class`` and what installs it."""

    name: str
    package: str
    service: str
    install: str


PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        peer.name: peer
        for peer in (
            Peer("torch", "torch", "polysci.peers.pytorch:PyTorch", "pip install 'polysci[peers]'"),
        )
    }
)
