"""Tuners that are killed at random moments, or run twice at once: nothing is lost or doubled."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from polysci.ops.convolutions import Conv2d
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.tune import Result, TunerOptions, optimize
from polysci.tune.tuners import TunerState
from polysci.tune.wisdom import Record, Wisdom
from tests.support.rehearsal import PAUSE, RehearsalRunner

pytestmark = pytest.mark.exhaustive
PROBLEM = Conv2d(N=1, C=5, H=6, W=6, K=8, R=3, S=3, pad=1)
OPTIONS = TunerOptions("genetic", 30, 6, elites=3, seed=2)
COMPILER = "none"


def tune(folder: Path, options: TunerOptions = OPTIONS) -> Result:
    """With made-up times."""
    wisdom, target = Wisdom(folder / "wisdom.sqlite"), detect("portable")
    return optimize(
        PROBLEM, target=target, machine=assume_rates(target), wisdom=wisdom, tuner=options,
        make_runner=partial(RehearsalRunner, COMPILER),
    )  # fmt: skip


def records_in(folder: Path) -> list[Record]:
    """All of them, as if they were of one moment."""
    records = Wisdom(folder / "wisdom.sqlite").list()
    return [replace(record, timestamp="2025-01-01T00:00:00Z") for record in records]


def state_in(folder: Path) -> TunerState | None:
    files = [*(folder / "tuners").glob("*.jsonl")]
    assert len(files) <= 1
    return TunerState.load(files[0], OPTIONS) if files else None


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a tuner that nobody interrupts."""
    folder = tmp_path / "alone"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(folder))
    tune(folder)
    return folder


@contextmanager
def tuning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BaseProcess]:
    """A process that tunes there: a copy of this one, which has imported all of it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(folder))
    running = get_context("fork").Process(target=tune, args=(folder,))
    running.start()
    try:
        yield running
    finally:
        running.kill()
        running.join()


def check_as_alone(folder: Path, alone: Path) -> None:
    """Raise AssertionError unless records and outcomes are those of one that ran undisturbed."""
    assert records_in(folder) == records_in(alone)
    its, expected = state_in(folder), state_in(alone)
    assert its and expected and its.outcomes == expected.outcomes


def test_killed_twenty_times(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, rng, known = tmp_path / "killed", random.Random(3), 0
    monkeypatch.setenv(PAUSE, "0.01")
    kills = 0
    while kills < 20:
        with tuning(folder, monkeypatch) as running:
            running.join(rng.uniform(0.0, 0.6))
            running.kill()
            running.join()
        kills += 1
        state = state_in(folder)
        assert state is None or len(state.outcomes) >= known
        known = len(state.outcomes) if state else 0
    assert tune(folder).schedule == tune(alone).schedule
    check_as_alone(folder, alone)


def test_two_at_once(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "both"
    monkeypatch.setenv(PAUSE, "0.01")
    with tuning(folder, monkeypatch) as first, tuning(folder, monkeypatch) as second:
        first.join(60)
        second.join(60)
        assert (first.exitcode, second.exitcode) == (0, 0)
    check_as_alone(folder, alone)


def test_what_another_process_measured_stays(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "late"
    monkeypatch.setenv(PAUSE, "0.02")
    with tuning(folder, monkeypatch) as first:
        while not state_in(folder):
            time.sleep(0.02)
        with tuning(folder, monkeypatch) as second:
            first.join(60)
            assert first.exitcode == 0 and second.is_alive()
    check_as_alone(folder, alone)
