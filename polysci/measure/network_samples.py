"""Samples of whole networks: memory of first runs, mean seconds of a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from polysci.numerics.arrays import Array

PAUSE_S: Final = 50e-3  # the idle threads of ONNX Runtime spin for 35 ms where none disturbs them


WARM_UP_S: Final = 20e-3


SAMPLE_S: Final = 50e-3


FIRST_RUNS: Final = 3  # until every buffer is there


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run; ``outputs`` copies what the last run left, in the model's order."""

    run: Callable[[], object]
    outputs: Callable[[], list[Array]]


Way = Callable[[], LoadedModel]


class ModelService:
    """A worker's operations on one model; it keeps the run of the one that was loaded last."""

    def __init__(self) -> None:
        self._run: Callable[[], object]

    def keep(self, model: LoadedModel, arrays: Sequence[Array], outputs: str) -> None:
        """Keep a model's run; write what it left to ``outputs``, an .npz, as arr_0..."""
        with Path(outputs).open("wb") as file:
            np.savez(file, *arrays)
        self._run = model.run


def measure_samples(way: Way) -> tuple[LoadedModel, int]:
    """Load a model; return it and the most memory in bytes that it and its first runs added."""
    _forget_peak()
    before = _memory("VmRSS")
    loaded = way()
    for _ in range(FIRST_RUNS):
        loaded.run()
    return loaded, max(0, _memory("VmHWM") - before)


def mean_seconds(run: Callable[[], object], least_s: float) -> float:
    """Return seconds a run: the mean of one or more in a row that last at least ``least_s``."""
    runs, start = 0, time.perf_counter()
    while True:
        run()
        runs += 1
        seconds = time.perf_counter() - start
        if seconds >= least_s:
            return seconds / runs


def _memory(member: str) -> int:
    """Bytes of a member of /proc/self/status; ru_maxrss would begin with that of the parent."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == member:
            return int(value.split()[0]) << 10
    return 0


def _forget_peak() -> None:
    """Reset VmHWM: importing a library may need more memory than it keeps."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
