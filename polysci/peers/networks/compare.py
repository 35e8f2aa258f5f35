"""Our network beside the peers': each in its own process, timed in turns, one at a time."""

from __future__ import annotations

import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from os import PathLike
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci.errors import CheckError, SpecError, UnsupportedError
from polysci.frontends.layers.words import backward_of
from polysci.frontends.onnx.importer import bound_inputs
from polysci.measure.network_samples import PAUSE_S, SAMPLE_S, WARM_UP_S
from polysci.network.build import store
from polysci.network.compiled import Network, build_network
from polysci.network.prepare import prepare
from polysci.network.runner import inputs_of, order_inputs
from polysci.numerics.differences import Difference, compare_outputs, largest_error
from polysci.peers import REMEDY, Peer
from polysci.peers.contest import LEAST_ROUNDS, ROUNDS
from polysci.peers.process import FAILURES, PeerProcess, peer_named

Array = NDArray[Any]


def f32_loss(network: Network, inputs: Mapping[str, Array]) -> float:
    """max |y - f32's y| / max(1, max |f32's y|), the largest of all outputs.

    The f32 network has the schedules on record, else those that the model prefers.
    """
    options = replace(network.options, level="estimate", dtype="f32", algorithm="direct")
    plain = build_network(prepare(network.prepared.graph, "f32"), options, network.name)
    ours, theirs = (
        compiled.runner(order_inputs(compiled.inputs, inputs)) for compiled in (network, plain)
    )
    return largest_error(ours, theirs, "f32")


OURS: Final = "polysci"
DTYPES: Final = ("f32", "bf16")
_TRIALS: Final = 5  # samples that decide between the settings


class TimedNetwork(PeerProcess):
    """A worker process with a network in it, loaded and ready to be timed.

    ``outputs`` are those of one run, in the model's order, ``choice`` is the setting,
    ``peak_bytes`` the memory that loading and the first runs added to that process.
    """

    version = choice = ""
    peak_bytes = 0
    outputs: Sequence[Array] = ()

    def sample(self) -> float:
        """One sample, in seconds a run, after a warm-up."""
        options = {"warm_up_s": WARM_UP_S, "min_sample_s": SAMPLE_S}
        return float(self.ask({"op": "sample", **options})["seconds"])


class NetworkRival(TimedNetwork):
    """A peer's worker process with a model in it, after ``load``.

    ``timeout`` is in seconds, for every question. ``choice`` is the fastest setting,
    ``settings`` the least seconds a run of each on trial.
    """

    def __init__(self, peer: Peer, threads: int = 1, *, timeout: float = 600.0) -> None:
        super().__init__(peer, threads, timeout=timeout)
        self.settings: Mapping[str, float] = {}

    def load(
        self,
        model: str | PathLike[str],
        inputs: Mapping[str, Array],
        *,
        dims: Mapping[str, int] | None = None,
        dtype: str = "f32",
    ) -> None:
        """Run the ONNX file, or the words of a model, on ``inputs``, by name; f32 or bf16.

        The fastest setting of the peer stays loaded.

        ``dims`` binds free dimensions, by name or as ``INPUT.AXIS``. Raises UnsupportedError for
        what the peer lacks (its package, bf16) and CheckError where it fails.
        """
        if dtype not in DTYPES:
            raise SpecError(f"dtype {dtype!r}: expected one of {', '.join(DTYPES)}")
        path = Path(model)
        with tempfile.TemporaryDirectory(prefix="polysci-") as folder:
            inputs_file, outputs_file = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
            np.savez(inputs_file, *inputs.values())
            options: dict[str, Any] = {
                "model": str(path.resolve() if path.exists() else model), "dims": dict(dims or {}),
                "threads": self.threads, "dtype": dtype,
                "inputs": str(inputs_file), "names": list(inputs),
            }  # fmt: skip
            self._fresh()
            names = list(map(str, self.ask({"op": "choices", **options})["choices"]))
            fastest = dict.fromkeys(names, inf)
            for name in names:
                self._take(name, options, outputs_file)
                fastest[name] = min(self.sample() for _ in range(_TRIALS))
            self.settings = fastest
            if (best := min(fastest, key=fastest.__getitem__)) != self.choice:
                self._take(best, options, outputs_file)

    def _fresh(self) -> None:
        if self.choice or not self.alive:
            self.choice = ""
            self.restart()

    def _take(self, choice: str, options: Mapping[str, Any], written: Path) -> None:
        """Load in a process that holds no other setting's threads and memory."""
        self._fresh()
        question = {"op": "load", "choice": choice, "outputs": str(written), **options}
        answer = self.ask(question)
        self.choice, self.version = choice, str(answer["version"])
        self.peak_bytes = int(answer["peak_bytes"])
        self.outputs = read(written, int(answer["outputs"]))


def read(path: Path, count: int) -> list[Array]:
    """The arrays that a worker left in a file."""
    try:
        with np.load(path) as file:
            return [file[f"arr_{index}"] for index in range(count)]
    except (OSError, EOFError, LookupError, ValueError, zipfile.BadZipFile) as error:
        raise CheckError(f"the peer's outputs cannot be read: {error}") from error


Say = Callable[[str], None]


class CompiledContestant(TimedNetwork):
    """The worker process of our network."""

    def __init__(
        self, network: Network, inputs: Mapping[str, Array], *, timeout: float = 600.0
    ) -> None:
        us = Peer(OURS, OURS, "", "networks")
        module = "polysci.network.service"
        super().__init__(us, network.threads, timeout=timeout, module=module)
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
            options = {"folder": name, "inputs": str(stored), "outputs": str(written)}
            answer = self.ask({"op": "load", **options})
            self.peak_bytes = int(answer["peak_bytes"])
            self.outputs = read(written, int(answer["outputs"]))


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


def compare(
    ours: TimedNetwork,
    rivals: Mapping[str, TimedNetwork],
    rounds: int = ROUNDS,
    *,
    failures: Mapping[str, str] = MappingProxyType({}),
    pause_s: float = PAUSE_S,
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
    contestants: dict[str, TimedNetwork] = {OURS: ours, **rivals}
    order = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in order}
    for turn in range(rounds):
        first = turn % len(order)
        for name in order[first:] + order[:first]:
            if name in failed:
                continue
            time.sleep(pause_s)
            try:
                seconds[name].append(contestants[name].sample())
            except FAILURES as error:
                if name == OURS:
                    raise
                failed[name] = str(error)
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
    inputs: Mapping[str, Array] | None = None,
) -> NetworkComparison:
    """Time the network and the peers in turns, each in its own process, on the same inputs.

    ``inputs`` are arrays by name, by default those of ``inputs_for``; ``dims`` and ``values`` as
    ``compile_network`` took them. The result says of a peer that lacks something, as bf16, or
    fails, why it has no time. Raises CheckError where ours fails.
    """
    inputs = inputs_for(network, model) if inputs is None else inputs
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
