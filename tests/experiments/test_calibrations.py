"""calibrations.py: searches after calibrations that differ, and how far their winners are apart."""

import importlib
import os
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from polysci.measure.samples import DisturbedError
from polysci.ops import parse_problem
from polysci.target.host import detect
from polysci.target.machine import Machine, assume_rates
from polysci.tune import calibrate

LAYER = parse_problem('mb1ic64ih14oc64kh3ph1n"first"')
ARGUMENTS = Namespace(layout="nhwc", threads=1, level="estimate", samples=3)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as its own folder sees it."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "experiments")
    return importlib.import_module("calibrations")


@pytest.fixture
def caches(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Rates as assumed, twice, and those of a machine that is slow in all of its tiles but one.

    Schedules with that tile are said to take twice as long in the end.
    """
    monkeypatch.setenv("POLYSCI_ISA", "portable")
    target = detect()
    usual = replace(assume_rates(target), measured=True)
    only = dict.fromkeys(map(str, calibrate.kernels_for("portable", "f32")), 0.1)
    other = replace(usual, efficiency=only | {"brgemm_portable_f32_2x8": 1.0})
    rates = iter((usual, usual, other))

    def measure(target: object, progress: object) -> Machine:
        return calibrate._store(calibrate.machine_path(detect()), next(rates))

    monkeypatch.setattr(script, "calibrate", measure)
    monkeypatch.setattr(
        script,
        "retimed",
        lambda problem, schedules, *_: [1.0 + ("2x8" in str(it)) for it in schedules],
    )
    return list(script.calibrated(tmp_path, 3))


@pytest.mark.exhaustive
def test_winners_of_different_calibrations_are_timed_together(
    script: ModuleType, caches: list[Path]
) -> None:
    row = script.row_of(LAYER, caches, ARGUMENTS)
    assert row["calibrations"] == 3 and row["chosen"] == 2
    assert (row["seconds"], row["worst"], row["median"]) == (1.0, 2.0, 1.0)
    assert "2x8" in row["slowest_schedule"] and "2x8" not in row["fastest_schedule"]


@pytest.mark.exhaustive
def test_a_layer_that_fails_does_not_end_the_others(
    script: ModuleType, caches: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, path = list[dict[str, object]](), tmp_path / "calibrations.csv"
    huge = replace(LAYER, H=10**7, W=10**7, name="huge")
    steps = script.compared([huge, LAYER], caches[:1], ARGUMENTS, rows, path)
    assert [problem.name for problem in steps] == ["huge", "first"]
    assert [row["layer"] for row in rows] == ["first"] and "huge" in capsys.readouterr().err
    assert path.read_text().count("\n") == 2
    assert "first" in script.table(rows)


def test_the_cache_of_before_comes_back(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYSCI_CACHE_DIR", "before")
    with script.script.cache_in(tmp_path):
        assert calibrate.machine_path(detect("portable")).parent == tmp_path
    assert os.environ["POLYSCI_CACHE_DIR"] == "before"


def test_a_disturbed_calibration_is_repeated(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = iter([True, False, True, True, True, True, True])

    def measure(target: object, progress: object) -> None:
        if next(outcomes):
            raise DisturbedError("busy")

    monkeypatch.setattr(script, "calibrate", measure)
    assert len(list(script.calibrated(tmp_path, 1))) == 1
    (tmp_path / "again").mkdir()
    with pytest.raises(DisturbedError, match="busy"):
        list(script.calibrated(tmp_path / "again", 1))
