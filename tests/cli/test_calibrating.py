"""Whatever command measures the machine says so, once; none does so twice."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from polysci.target.machine import Machine, assume_rates
from polysci.target.target import Target
from polysci.tune import calibrate
from polysci.tune.result import describe_calibration
from tests.support.command import polysci
from tests.support.compiling import saved, tiny

LAYERS = ("mb1ic8ih10oc24oh10kh3ph1", "mb1ic8ih12oc24oh12kh3ph1")
QUICK = ("--isa", "portable")  # its code compiles fast
COMMANDS: dict[str, Callable[[Path, Path], tuple[str | Path, ...]]] = {
    "export": lambda model, out: (
        *("export", *LAYERS, "--level", "estimate", "--force"), "-o", out / "project",
    ),
    "optimize": lambda model, out: ("optimize", *LAYERS, "--level", "estimate"),
    "bf16": lambda model, out: ("optimize", *LAYERS, "--dtype", "bf16", "--level", "estimate"),
    "check": lambda model, out: ("check", *LAYERS, "--all", "1"),
    "rank": lambda model, out: ("rank", *LAYERS, "--ranker", "traffic"),
    "explain": lambda model, out: ("explain", *LAYERS),
    "report": lambda model, out: (
        *("report", *LAYERS, "--level", "estimate"), "-o", out / "report.html",
    ),
    "compile": lambda model, out: ("compile", model, "--level", "estimate", "--explain"),
    "machine": lambda model, out: ("machine", "--calibrate"),
}  # fmt: skip


@pytest.fixture
def uncalibrated(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A cache without rates, and measurements that take no time: what was measured."""
    for file in fresh_cache.glob("machine-*"):
        file.unlink()
    calls = list[str]()

    def measure(target: Target, progress: calibrate.Progress) -> Machine:
        calls.append("f32")
        progress(1, 2)
        rates = replace(assume_rates(target), measured=True)
        return calibrate._store(calibrate.machine_path(target), rates)

    def extend(machine: Machine, target: Target, x: str, progress: calibrate.Progress) -> Machine:
        calls.append(x)
        return calibrate._store(calibrate.machine_path(target, x), machine)

    monkeypatch.setattr(calibrate, "_measure", measure)
    monkeypatch.setattr(calibrate, "_extend", extend)
    return calls


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", COMMANDS)
def test_calibrating_is_told_once(uncalibrated: list[str], tmp_path: Path, command: str) -> None:
    words = COMMANDS[command](saved(tiny(), tmp_path / "tiny.onnx"), tmp_path)
    line = describe_calibration("bf16" if command == "bf16" else "f32")
    for count in (1, int(command == "machine")):  # which measures again whenever it is asked
        ran = polysci(*words, *QUICK)
        assert ran.returncode == 0, ran.stderr
        assert ran.stderr.count("measuring") == ran.stderr.splitlines().count(line) == count
        assert "measuring this machine" not in ran.stdout
    assert uncalibrated == ["f32"] * (1 + count) + ["bf16"] * (command == "bf16")


@pytest.mark.exhaustive
def test_another_type_is_told_as_well(uncalibrated: list[str]) -> None:
    words = ("optimize", LAYERS[0], "--level", "estimate", *QUICK)
    for dtype in ("f32", "bf16", "u8:s8:u8", "f32"):
        assert polysci(*words, "--dtype", dtype).returncode == 0
    assert uncalibrated == ["f32", "bf16", "u8"]
