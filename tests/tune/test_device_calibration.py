"""Figures of a device: found within overheads, kept as they come, assumed where a probe fails."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from polysci.cost.groups import clock_of
from polysci.errors import CheckError, UnsupportedError
from polysci.runtime.backends.opencl import devices
from polysci.target.isas import DEVICE_ISAS
from polysci.target.machine import Machine, assume_rates, from_json
from polysci.target.machine_file import MachineFile, parse
from polysci.target.target import KIB, Memory, Target
from polysci.tune import calibrate, device_calibration, device_probes
from polysci.tune.device_calibration import (
    DeviceCalibration,
    calibrate_device,
    figure_names,
    figures_of,
)
from polysci.tune.device_probes import LAUNCHES, DeviceProbe

pytest.importorskip("pyopencl", reason="OpenCL: pyopencl is not installed")
if not devices():
    pytest.skip("OpenCL: there is no device", allow_module_level=True)

LAUNCH_S = 20e-6
OVERHEAD_S = 80e-6
RATES = {"local": 128.0, "L2": 50.0, "memory_all": 300.0, "writes": 200.0, "copies": 250.0}
PEAK = 400.0


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(tmp_path))


@pytest.fixture
def target() -> Target:
    """The device as one of groups."""
    from polysci.runtime.backends import backend_named

    (device,) = backend_named("opencl:0").targets()
    memories = (
        Memory("L2", 512 * KIB, cores=0), Memory("local", 48 * KIB, kind="local"),
        Memory("memory", 1 << 30, cores=0, kind="global"),
    )  # fmt: skip
    return replace(device, isa=DEVICE_ISAS["opencl4"], memories=memories)


def rate(name: str) -> float:
    """What a fake device does in a nanosecond."""
    figure = {"products": "peak", "words": "peak", "one": "peak", "many": "peak"}
    own = figure.get(name, name.removeprefix("reads_").removesuffix("_memory"))
    return {"peak": PEAK, "memory": 300.0, **RATES}[own] * (0.5 if name == "words" else 1.0)


class FakeBench:
    """A device whose runs take what their work does, an overhead, and often other work."""

    busy: Iterator[int]
    asked: list[str]
    faulty: Mapping[str, BaseException]

    def __init__(self, *_: object, **__: object) -> None:
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return

    def probe_device(
        self, so: Path, symbol: str, sizes: tuple[int, ...], run_s: float = 1e-3, turns: int = 0
    ) -> tuple[int, list[float]]:
        FakeBench.asked.append(symbol)
        if symbol in FakeBench.faulty:
            raise FakeBench.faulty[symbol]
        work = 1e-9 * AMOUNTS[symbol] / rate(symbol)
        count = turns or max(1, round(run_s / work))
        launches = LAUNCHES if symbol == "many" else 1
        taken = launches * (LAUNCH_S + count * work) + OVERHEAD_S
        return count, [taken + 4e-3 * (at % 3 > 0) for at in range(5)]


AMOUNTS: dict[str, float] = {}


@pytest.fixture(autouse=True)
def bench(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    FakeBench.asked, FakeBench.faulty = [], {}
    monkeypatch.setattr(device_calibration, "Bench", FakeBench)

    class NoCompiler:
        measured, name, compiler = True, "opencl:0", "a driver"

        def build(self, text: str, **_: Any) -> Path:
            return Path(text[:0])

    monkeypatch.setattr(device_calibration, "backend_of", lambda _: NoCompiler())
    probes: list[DeviceProbe] = [
        probe
        for file in (*device_probes.probe_files(target),
                     device_probes.launches_file(target))
        for probe in file.probes
    ]  # fmt: skip
    AMOUNTS.clear()
    AMOUNTS.update({probe.name: probe.amount for probe in probes})


def measure(target: Target, known: Machine | None = None) -> tuple[Machine, list[Machine]]:
    stored = list[Machine]()
    machine = calibrate_device(target, known, stored.append, lambda done, total: None)
    return machine, stored


def test_figures_are_those_of_the_device(target: Target) -> None:
    machine, stored = measure(target)
    assert machine.measured and stored[-1] == machine
    assert machine.peak == pytest.approx(PEAK, rel=0.01)
    found = dict(machine.bandwidths) | {"memory_all": machine.memory_all}
    assert found == pytest.approx(RATES, rel=0.01)
    assert machine.coefficient("speed_words") == pytest.approx(0.5, rel=0.01)
    assert machine.coefficient("launch_us") == pytest.approx(LAUNCH_S * 1e6, rel=0.05)
    assert {*machine.errors} == {*figure_names(target)}
    assert all(error > 0 for error in machine.errors.values())
    assert "a driver" in machine.cpu


def test_they_come_back_from_both_kinds_of_files(target: Target) -> None:
    machine, _ = measure(target)
    assert from_json(machine.to_json()) == machine
    assert parse(MachineFile(target, machine).to_toml()).machine == machine
    again = DeviceCalibration(target, figures_of(machine)).machine()
    assert again.errors == pytest.approx(dict(machine.errors))
    assert again.coefficients == pytest.approx(dict(machine.coefficients))


def test_what_is_interrupted_is_kept_and_the_rest_measured_later(target: Target) -> None:
    FakeBench.faulty = {"reads_memory": KeyboardInterrupt()}
    stored = list[Machine]()
    with pytest.raises(KeyboardInterrupt):
        calibrate_device(target, None, stored.append, lambda done, total: None)
    (partial,) = stored
    assert not partial.measured and partial.peak == pytest.approx(PEAK, rel=0.01)
    assert {*partial.errors} == {"peak", "local", "L2"}
    FakeBench.asked, FakeBench.faulty = [], {}
    machine, _ = measure(target, partial)
    assert machine.measured and not {"products", "reads_local", "reads_L2"} & {*FakeBench.asked}


def test_a_probe_that_fails_costs_its_figure(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    FakeBench.faulty = {"reads_local": CheckError("reads_local: no answer within 60 s")}
    with caplog.at_level(logging.WARNING):
        machine, _ = measure(target)
    assert "local" not in machine.errors and "local" not in machine.bandwidths
    assert not machine.measured and machine.memory_all == pytest.approx(300, rel=0.01)
    (record,) = caplog.records
    assert record.getMessage() == (
        "opencl:0: local stays assumed: reads_local: no answer within 60 s"
    )


def test_what_other_work_disturbs_is_left_to_the_next_calibration(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_calibration, "PATIENCE_S", 0.0)
    usual = FakeBench.probe_device

    def disturbed(self: FakeBench, so: Path, symbol: str, *args: Any, **words: Any) -> Any:
        count, runs = usual(self, so, symbol, *args, **words)
        late = 5.0 if symbol == "reads_local" and count > 1.5 * least else 1.0
        return count, [late * run for run in runs]

    least = 1e6 * rate("reads_local") / AMOUNTS["reads_local"]  # turns of a millisecond

    monkeypatch.setattr(FakeBench, "probe_device", disturbed)
    machine, _ = measure(target)
    assert "local" not in machine.errors and "L2" in machine.errors


def test_measured_rates_take_the_place_of_described_ones(target: Target) -> None:
    assumed = assume_rates(target)
    machine, _ = measure(target)
    assert clock_of(target, assumed, assumed.peak) != clock_of(target, machine, machine.peak)
    assert clock_of(target, machine, machine.peak) == pytest.approx(
        1e9 * machine.bandwidths["local"] / target.unit.front
    )


def test_a_device_without_a_file_is_assumed(target: Target) -> None:
    assert calibrate.machine_of(target) == assume_rates(target)
    machine, _ = measure(target)
    calibrate._store(calibrate.machine_path(target), machine)
    assert calibrate.machine_of(target) == machine
    (*caches, memory) = target.memories
    full = replace(target, memories=(*caches, replace(memory, size=memory.size // 2)))
    assert calibrate.machine_of(full) == machine  # drivers may tell what is free
    other = replace(target, model_name="another device")
    assert calibrate.machine_of(other) == assume_rates(other)


def test_an_architecture_is_not_measured(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    class Architecture:
        measured = False

    monkeypatch.setattr(calibrate, "backend_of", lambda _: Architecture())
    with pytest.raises(UnsupportedError, match=r"^opencl:0: an architecture runs nothing"):
        calibrate.measure_device(target)
