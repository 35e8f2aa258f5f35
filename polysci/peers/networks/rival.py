"""A peer that runs networks, as the parent sees it: one process for each model."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np

from polysci.errors import CheckError, SpecError
from polysci.measure.network_samples import SAMPLE_S, WARM_UP_S
from polysci.peers import Peer
from polysci.peers.networks.service import Array
from polysci.peers.process import PeerProcess

DTYPES: Final = ("f32", "bf16")
_TRIALS: Final = 5  # samples that decide between the settings


class NetworkRival(PeerProcess):
    """A peer's worker process with a model in it, after ``load``.

    ``timeout`` is in seconds, for every question. ``choice`` is the fastest setting,
    ``settings`` the least seconds a run of each on trial, ``peak_bytes`` the most memory that
    loading and the first runs added to that process.
    """

    def __init__(self, peer: Peer, threads: int = 1, *, timeout: float = 600.0) -> None:
        super().__init__(peer, threads, timeout=timeout)
        self.version, self.choice, self.peak_bytes = "", "", 0
        self.settings: Mapping[str, float] = {}
        self.outputs: Sequence[Array] = ()

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
            words: dict[str, Any] = {
                "model": str(path.resolve() if path.exists() else model), "dims": dict(dims or {}),
                "threads": self.threads, "dtype": dtype,
                "inputs": str(inputs_file), "names": list(inputs),
            }  # fmt: skip
            self._fresh()
            names = list(map(str, self.ask({"op": "choices", **words})["choices"]))
            fastest = dict.fromkeys(names, inf)
            for name in names:
                self._take(name, words, outputs_file)
                fastest[name] = min(self.sample() for _ in range(_TRIALS))
            self.settings = fastest
            if (best := min(fastest, key=fastest.__getitem__)) != self.choice:
                self._take(best, words, outputs_file)

    def sample(self) -> float:
        """One sample, in seconds a run, after a warm-up."""
        words = {"warm_up_s": WARM_UP_S, "min_sample_s": SAMPLE_S}
        return float(self.ask({"op": "sample", **words})["seconds"])

    def _fresh(self) -> None:
        if self.choice or not self.alive:
            self.choice = ""
            self.restart()

    def _take(self, choice: str, words: Mapping[str, Any], written: Path) -> None:
        """Load in a process that holds no other setting's threads and memory."""
        self._fresh()
        question = {"op": "load", "choice": choice, "outputs": str(written), **words}
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
