"""Backends: the way from a schedule to seconds, and that drivers go it through their backend."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polysci.errors import UnsupportedError
from polysci.measure.bench import Bench
from polysci.measure.check import check
from polysci.measure.samples import Samples
from polysci.measure.trials import build_trials, time_trials
from polysci.numerics.dtypes import PRECISIONS
from polysci.ops.convolutions import Conv2d
from polysci.printers import interface
from polysci.runtime import backends
from polysci.runtime.backend import bind
from polysci.runtime.backends import BACKENDS
from polysci.runtime.source import emit
from polysci.space.schedule import parse
from polysci.tune import EmitOptions, optimize

HOST = BACKENDS["host"]
LAYER = Conv2d(N=1, C=4, H=4, W=4, K=8, R=1, S=1)
SCHEDULE = parse("p > brgemm_portable_f32_4x8")


@dataclass
class Recorder:
    """The host's backend, which notes what is asked of it."""

    name: str = HOST.name
    asked: list[str] = field(default_factory=list)

    def __getattr__(self, method: str) -> Any:
        self.asked.append(method)
        return getattr(HOST, method)


def test_rows_stand_under_their_names() -> None:
    assert [row.name for row in BACKENDS.values()] == list(BACKENDS) == ["host"]


def test_emit_build_load_time() -> None:
    source = emit(LAYER, SCHEDULE, 1, EmitOptions("layer"))
    path = HOST.build(source.file)
    assert path.suffix == ".so" and HOST.build_many([source.file, source.file]) == [path] * 2
    library = HOST.load(path, interface.declarations("layer", PRECISIONS["f32"]))
    functions = bind(library, "layer")
    assert functions.packed_size == 4 * 4 * 8
    arrays = [np.ones(4 * 4 * 4, np.float32), np.ones(4 * 8, np.float32), np.zeros(128, np.float32)]
    x, packed, y = (library.ffi.from_buffer("float[]", array) for array in arrays)
    null = library.ffi.NULL
    call = (x, packed, y, null, null, null, null)
    assert 0 < HOST.time(functions.run, [call] * 3) < 1
    assert np.array_equal(arrays[2], np.full(128, 4, np.float32))


def test_time_is_the_mean_of_the_calls() -> None:
    calls: list[int] = []
    seconds = HOST.time(lambda number: calls.append(number), [(number,) for number in range(1000)])
    assert calls == list(range(1000)) and 0 < seconds < 1e-3


@pytest.mark.exhaustive
def test_checks_and_trials_go_through_their_backend() -> None:
    recorder = Recorder()
    verdicts = list(check(LAYER, [SCHEDULE], backend=recorder))
    assert [verdict.passed for verdict in verdicts] == [True, True]
    assert recorder.asked == ["measured", "build", "build"]
    recorder.asked.clear()
    trials = build_trials(LAYER, [SCHEDULE], backend=recorder)
    assert recorder.asked == ["build_many"]
    with Bench(LAYER, backend=recorder) as bench:
        ((trial, samples),) = time_trials(bench, trials)
    assert (
        isinstance(trial.path, Path) and isinstance(samples, Samples) and min(samples.seconds) > 0
    )


@pytest.mark.exhaustive
def test_a_target_names_the_backend_of_a_search(
    fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searching, timing and loading ask the row that the target names, and no other."""
    recorder = Recorder()
    monkeypatch.setattr(backends, "BACKENDS", {"host": recorder})
    result = optimize(LAYER, "measure", isa="portable", time_limit=1)
    assert "build_many" in recorder.asked
    recorder.asked.clear()
    result.primitive()
    assert recorder.asked == ["build", "load"]
    monkeypatch.setattr(backends, "BACKENDS", {})
    with pytest.raises(UnsupportedError, match=r"no backend 'host'; known: "):
        result.primitive()
