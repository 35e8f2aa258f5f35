"""Measured samples as JSON lines: a network, a problem and a Measurement of one schedule each."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np

from polysci.ops import parse_problem
from polysci.ops.problem import Problem
from polysci.runtime.measurement import Measurement, parse

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
SAMPLE = "sample.jsonl"
OURS, SHIPPED = RESULTS / SAMPLE, FOLDER / "results.tar.xz"


def default() -> Path:
    """The sample measured here, else the one in the archive of the project."""
    return OURS if OURS.exists() else SHIPPED


@dataclass(frozen=True, slots=True)
class Sample:
    """One schedule of one layer, measured once."""

    network: str
    problem: Problem
    measurement: Measurement

    @property
    def cold(self) -> bool:
        return self.measurement.protocol.startswith("cold")

    @property
    def setting(self) -> str:
        """What is compared with what: ``1 warm``, ``2 cold``: threads and caches."""
        return f"{self.measurement.threads} {'cold' if self.cold else 'warm'}"

    def __str__(self) -> str:
        words = {"network": self.network, "problem": str(self.problem)}
        words["layout"] = self.problem.layout
        return json.dumps(words | {"measurement": asdict(self.measurement)})


@dataclass(frozen=True, slots=True)
class Layer:
    """All schedules of one layer in one setting; ``seconds[i]`` the least of ``schedules[i]``."""

    network: str
    problem: Problem
    setting: str
    schedules: tuple[str, ...]
    seconds: np.ndarray

    @property
    def threads(self) -> int:
        return int(self.setting.split()[0])


def read(path: Path, member: str = SAMPLE) -> Iterator[Sample]:
    """Yield the samples of a file, or of a member of an archive.

    A last line that a crash cut off is left out.
    """
    for line in _text(path, member).splitlines():
        try:
            words = json.loads(line)
        except ValueError:
            continue
        problem = _problem(words["problem"], words["layout"])
        yield Sample(words["network"], problem, parse(json.dumps(words["measurement"])))


_problem = cache(parse_problem)  # each line of a layer names it


def _text(path: Path, name: str) -> str:
    if path.suffix != ".xz":
        return path.read_text(encoding="utf-8")
    with tarfile.open(path) as archive:
        member = archive.extractfile(name)
        assert member is not None, f"{path}: {name} is not a file"
        return member.read().decode("utf-8")


@cache
def _all_samples(path: Path, member: str) -> tuple[Sample, ...]:
    return tuple(read(path, member))


def layers(path: Path, setting: str = "1 warm", member: str = SAMPLE) -> list[Layer]:
    """Return the layers of a file in one setting, in the order of the file."""
    samples_by_key: dict[str, dict[str, Sample]] = {}
    for sample in _all_samples(path, member):
        if sample.setting == setting:
            samples = samples_by_key.setdefault(sample.problem.key, {})
            samples[sample.measurement.schedule] = sample
    return [
        Layer(
            next(iter(samples.values())).network,
            next(iter(samples.values())).problem,
            setting,
            tuple(samples),
            np.array([sample.measurement.min for sample in samples.values()]),
        )
        for samples in samples_by_key.values()
    ]
