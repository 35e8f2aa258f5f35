"""Our network beside the peers': in its own process, and all of them in turns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from polysci.errors import UnsupportedError
from polysci.frontends.layers.words import backward_of
from polysci.frontends.onnx.binding import bound_inputs
from polysci.measure.network_samples import SAMPLE_S, WARM_UP_S
from polysci.network.build import store
from polysci.network.compiled import Network
from polysci.network.example_inputs import inputs_of
from polysci.network.runner import order_inputs
from polysci.peers import REMEDY, Peer
from polysci.peers.contest import ROUNDS
from polysci.peers.networks.contest import OURS, NetworkComparison, compare
from polysci.peers.networks.rival import NetworkRival, read
from polysci.peers.networks.service import Array
from polysci.peers.process import FAILURES, PeerProcess, peer_named

Say = Callable[[str], None]


class CompiledContestant(PeerProcess):
    """Our network in a worker process, loaded and ready to be timed."""

    def __init__(
        self, network: Network, inputs: Mapping[str, Array], *, timeout: float = 600.0
    ) -> None:
        us = Peer(OURS, OURS, "", "networks")
        module = "polysci.network.service"
        super().__init__(us, network.threads, timeout=timeout, module=module)
        self.version = ""
        self.choice = f"{network.dtype}, {network.options.algorithm}, {network.options.target.isa}"
        try:
            self._load(network, inputs)
        except BaseException:
            self.close()
            raise

    def _load(self, network: Network, inputs: Mapping[str, Array]) -> None:
        with tempfile.TemporaryDirectory(prefix="polysci-") as name:
            folder = Path(name)
            stored, written = folder / "inputs.npz", folder / "outputs.npz"
            np.savez(stored, *(inputs[port.name] for port in network.inputs))
            store(network.code, network.runner.library.path, folder)
            words = {"folder": name, "inputs": str(stored), "outputs": str(written)}
            answer = self.ask({"op": "load", **words})
            self.peak_bytes = int(answer["peak_bytes"])
            self.outputs: Sequence[Array] = read(written, int(answer["outputs"]))

    def sample(self) -> float:
        """One sample, in seconds a run, after a warm-up."""
        words = {"warm_up_s": WARM_UP_S, "min_sample_s": SAMPLE_S}
        return float(self.ask({"op": "sample", **words})["seconds"])


def installed_peers(names: Sequence[str], say: Say) -> list[Peer]:
    """The peers of those names that are installed; ``say`` is told of each that is not.

    Raises SpecError for a name that is none, UnsupportedError where none is installed.
    """
    installed = list[Peer]()
    for name in names:
        try:
            installed.append(peer_named(name, "networks"))
        except UnsupportedError as error:
            say(f"{name} is left out: {error}")
    if not installed:
        raise UnsupportedError(f"no peer to compare with ({', '.join(names)}): {REMEDY}")
    return installed


def inputs_for(network: Network, model: object, seed: int = 0) -> dict[str, Array]:
    """Made-up inputs of a network, of which ``model`` is the file or the words.

    Parameters that are inputs, as of words with ``bwd``, have the values that training starts with:
    gradients of normally distributed ones explode, and rounding would decide about them.
    """
    inputs = inputs_of(network.inputs, seed)
    trained = backward_of(model) if isinstance(model, str) else None
    return {**inputs, **trained.parameters} if trained else inputs


def compare_networks(
    network: Network,
    model: str | PathLike[str],
    peers: Sequence[Peer],
    *,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None,
    rounds: int = ROUNDS,
    seed: int = 0,
    inputs: Mapping[str, Array] | None = None,
) -> NetworkComparison:
    """Time the network and the peers in turns, each in its own process, on the same inputs.

    ``inputs`` are arrays by name, by default those of ``inputs_for``; ``dims`` and ``values`` as
    ``compile_network`` took them. The result says of a peer that lacks something, as bf16, or
    fails, why it has no time. Raises CheckError where ours fails.
    """
    inputs = inputs_for(network, model, seed) if inputs is None else inputs
    arrays = order_inputs(network.inputs, inputs)
    inputs = {port.name: array for port, array in zip(network.inputs, arrays, strict=True)}
    constants = bound_inputs(model, dims or {}, values) if values else {}
    with ExitStack() as stack:
        rivals, failures = dict[str, NetworkRival](), dict[str, str]()
        for peer in peers:
            rival = stack.enter_context(NetworkRival(peer, network.threads))
            try:
                rival.load(model, {**inputs, **constants}, dims=dims, dtype=network.dtype)
            except FAILURES as error:
                rival.close()
                failures[peer.name] = str(error)
                continue
            rivals[peer.name] = rival
        ours = stack.enter_context(CompiledContestant(network, inputs))
        return compare(ours, rivals, rounds, failures=failures)
