"""Calibration: repeated where it was disturbed, kept only if it was not, told once."""

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TextIO

import pytest

from polysci import tune
from polysci.measure.bench import Bench, Candidate
from polysci.measure.samples import DisturbedError, Sample, Samples
from polysci.measure.trials import BuiltSchedule
from polysci.ops.convolutions import Conv2d
from polysci.runtime.build import folder
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.target.machine import Machine, assume_rates
from polysci.target.target import Target
from polysci.tune import calibrate, fit, probes
from polysci.tune.result import announce_calibration, describe_calibration
from tests.support import naive
from tests.support.load import busy
from tests.support.terminal import shown_on_terminal

TARGET = detect("portable")
MEASURED = replace(assume_rates(TARGET), measured=True)
TINY = Conv2d(N=1, C=5, H=6, W=6, K=8, R=3, S=3, pad=1)


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered of what failed before."""
    monkeypatch.setattr(calibrate, "_refused", set())
    monkeypatch.setattr(calibrate, "_unstored", {})
    monkeypatch.setattr(folder, "_private", None)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measuring takes no time here; the calls of it."""
    calls = list[str]()

    def measure(target: Target, progress: calibrate.Progress) -> Machine:
        calls.append("f32")
        return calibrate._store(calibrate.machine_path(target), MEASURED)

    monkeypatch.setattr(calibrate, "_measure", measure)
    return calls


class FakeBench:
    """Probes whose runs are disturbed as often as ``disturbed(name, pass)`` says."""

    def __init__(self, disturbed: Callable[[str, int], bool]) -> None:
        self.disturbed, self.asked = disturbed, Counter[str]()

    def probe(self, so: Path, symbol: str, run_s: float, clock: Candidate | None = None) -> Samples:
        self.asked[symbol] += 1
        busy = self.disturbed(symbol, self.asked[symbol])
        return Samples([Sample(2.0 if busy else 1.0, waited=0.5 * busy)] * 5)


def rates(bench: FakeBench, names: str) -> dict[str, float]:
    return calibrate._rates(bench, [(name, Path(name)) for name in names], "probes", 0.02)  # type: ignore[arg-type]


def test_only_what_was_disturbed_is_repeated() -> None:
    bench = FakeBench(lambda name, turn: name == "b" and turn < 5)
    assert rates(bench, "abc") == dict.fromkeys("abc", pytest.approx(1e-9))
    assert bench.asked == {"a": 2, "b": 6, "c": 2}


def test_only_disturbed_schedules_are_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    schedules = [Schedule.parse(f"p:{rows} > brgemm_portable_f32_6x8") for rows in (2, 3, 4)]
    asked = list[list[Schedule]]()

    def time_trials(
        bench: object, tried: Sequence[BuiltSchedule], check: bool = True
    ) -> Iterator[tuple[BuiltSchedule, Samples]]:
        asked.append([trial.schedule for trial in tried])
        for trial in tried:
            busy = trial.schedule == schedules[1] and len(asked) < 3
            yield trial, Samples([Sample(2.0 if busy else 1.0, waited=0.5 * busy)] * 5)

    monkeypatch.setattr(fit, "time_trials", time_trials)
    pairs = [(modelled({}), BuiltSchedule(schedule)) for schedule in schedules]
    timed = [samples for _, samples in fit._time(None, pairs)]  # type: ignore[arg-type]
    assert asked == [schedules, schedules[1:2], schedules[1:2]]
    assert [samples.seconds for samples in timed] == [(1.0,) * 5] * 3


def test_a_rate_counts_once_two_passes_agree_on_it() -> None:
    """A neighbour that no counter shows slows all runs of a pass, but not two passes alike."""

    class Unnoticed(FakeBench):
        def probe(
            self, so: Path, symbol: str, run_s: float, clock: Candidate | None = None
        ) -> Samples:
            super().probe(so, symbol, run_s, clock)
            seconds = [1.2, 1.4, 1.3, 0.9, 1.0, 1.0, 0.91][self.asked[symbol] - 1]
            return Samples([Sample(seconds)] * 5)

    bench = Unnoticed(lambda name, turn: False)
    assert rates(bench, "a") == {"a": pytest.approx(1e-9 / 0.91)} and bench.asked == {"a": 7}


def test_a_burst_of_the_clock_is_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "AGREE_S", 0.0)

    class Burst(FakeBench):
        def probe(
            self, so: Path, symbol: str, run_s: float, clock: Candidate | None = None
        ) -> Samples:
            super().probe(so, symbol, run_s, clock)
            return Samples([Sample([0.9, 1.0][self.asked[symbol] - 1])] * 2)  # clean ones: 4 in all

    assert rates(Burst(lambda name, turn: False), "a") == {"a": pytest.approx(1e-9)}


def test_a_burst_of_the_clock_changes_no_rate() -> None:
    """Rates in cycles, at the clock's median rate."""

    class Burst(FakeBench):
        def probe(
            self, so: Path, symbol: str, run_s: float, clock: Candidate | None = None
        ) -> Samples:
            super().probe(so, symbol, run_s, clock)
            burst = 1.25 if symbol == "b" else 1.0
            return Samples([Sample(1 / burst, clock=burst)] * 5)

    assert rates(Burst(lambda name, turn: False), "abc") == dict.fromkeys(
        "abc", pytest.approx(1e-9)
    )


@pytest.mark.exhaustive
def test_the_clock_of_a_probe(fresh_cache: Path) -> None:
    """The loop's own time, taken around it."""
    clock = probes.build_clock(TARGET)
    with Bench(TINY) as bench:
        runs = [sample for _ in range(5) for sample in bench.probe(*clock, 1e-4, clock).taken]
    assert 0.7 < min(sample.rounds for sample in runs) < 1.5


def test_stencils_between_measured_rows_have_rates_between_theirs() -> None:
    kernels = calibrate.kernels_for("avx512", "f32")
    probed = calibrate._probed(kernels)
    assert len(kernels) - len(probed) > 50
    assert {it.rows for it in kernels if it not in probed} >= {3, 5, 7, 9}
    assert all(kernel in probed for kernel in kernels if not kernel.stencil)
    rates = {str(kernel): float(kernel.rows * kernel.cols) for kernel in probed}
    for kernel, share in zip(
        kernels, calibrate._efficiency(kernels, rates, 10.0).values(), strict=True
    ):
        assert share == pytest.approx(kernel.rows * kernel.cols / 10)  # linear, so exact


def test_what_stays_disturbed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "PATIENCE_S", 0.01)
    bench = FakeBench(lambda name, turn: name in "ab")
    with pytest.raises(
        DisturbedError, match=r"other work disturbed 2 of 4 probes.* next process tries again"
    ):
        rates(bench, "abcd")
    bench = FakeBench(lambda name, turn: name == "a")  # one of six does no harm
    assert rates(bench, "abcdef")["a"] == pytest.approx(0.5e-9)


def test_a_busy_machine_is_not_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning, and assumed rates; the next process tries again."""
    tried = list[str]()

    def measure(target: Target, progress: calibrate.Progress) -> Machine:
        tried.append("f32")
        raise DisturbedError("other work disturbed 4 of 4 rates")

    monkeypatch.setattr(calibrate, "_measure", measure)
    with caplog.at_level(logging.WARNING):
        for x in ("f32", "bf16", "f32"):
            assert calibrate.machine_of(TARGET, x=x) == assume_rates(TARGET)
    assert tried == ["f32"] and not list(cache.glob("machine-*"))
    (warning,) = caplog.messages
    assert warning == "calibration failed, using assumed rates: other work disturbed 4 of 4 rates"
    calibrate._refused.clear()
    calibrate.machine_of(TARGET)
    assert tried == ["f32", "f32"]


def test_threads_measure_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes while another thread measures waits for its result."""
    tried = list[str]()

    def measure(target: Target, progress: calibrate.Progress) -> Machine:
        tried.append("f32")
        time.sleep(0.1)
        return calibrate._store(calibrate.machine_path(target), MEASURED)

    monkeypatch.setattr(calibrate, "_measure", measure)
    with ThreadPoolExecutor(3) as pool:
        machines = [*pool.map(calibrate.machine_of, [TARGET] * 3)]
    assert machines == [MEASURED] * 3 and tried == ["f32"]


def test_a_type_without_kernels_of_its_own_has_the_rates_of_f32(cache: Path) -> None:
    """As bf16 on processors that multiply it as f32."""
    rates = {str(kernel): 0.5 for kernel in calibrate.kernels_for("portable", "f32")}
    machine = replace(MEASURED, efficiency=MappingProxyType(rates))
    assert calibrate._extend(machine, TARGET, "bf16", lambda done, total: None) == machine
    assert calibrate.load_rates(TARGET, "bf16") == machine


def test_rates_of_f32_serve_where_another_type_cannot_be_measured(
    cache: Path, measurements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> Machine:
        raise DisturbedError("busy")

    monkeypatch.setattr(calibrate, "_extend", refuse)
    assert calibrate.machine_of(TARGET, x="bf16") == MEASURED
    assert calibrate.load_rates(TARGET, "bf16") is None
    assert calibrate.machine_of(TARGET, x="u8") == MEASURED and measurements == ["f32"]


def test_a_read_only_cache_is_read(
    cache: Path,
    measurements: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calibrate._store(calibrate.machine_path(TARGET), MEASURED)
    monkeypatch.setattr(folder.os, "access", lambda *arguments: False)
    with caplog.at_level(logging.WARNING):
        assert calibrate.machine_of(TARGET) == MEASURED
    assert not measurements and not caplog.messages


def test_a_read_only_cache_without_rates_costs_one_measurement(
    cache: Path,
    measurements: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(folder.os, "access", lambda *arguments: False)
    monkeypatch.setattr(folder, "_warned", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert calibrate.machine_of(TARGET) == MEASURED
    assert measurements == ["f32"] and not list(cache.iterdir())
    (warning,) = caplog.messages
    assert "it is read-only" in warning


def test_rates_that_cannot_be_written_serve_until_the_process_ends(
    cache: Path, measurements: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = calibrate.machine_path(TARGET)
    path.mkdir()  # nothing can take its place
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert calibrate.machine_of(TARGET) == MEASURED
    assert measurements == ["f32"] and list(path.parent.iterdir()) == [path]
    (warning,) = caplog.messages
    assert "cannot keep the calibration" in warning


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a directory of root's")
def test_rates_of_a_directory_of_roots_are_read(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate._store(calibrate.machine_path(TARGET), MEASURED)
    monkeypatch.setattr(folder.os, "geteuid", lambda: 12345)
    assert calibrate.load_rates(TARGET) == MEASURED
    cache.chmod(0o777)  # anyone may have written it
    assert calibrate.load_rates(TARGET) is None


@pytest.mark.exhaustive
def test_without_progress_standard_error_tells_once(
    fresh_cache: Path, measurements: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    calibrate.machine_path(TARGET).unlink()
    for _ in range(2):
        tune.optimize(TINY, "estimate", target=TARGET)
    assert capsys.readouterr().err.splitlines() == [describe_calibration("f32")]


def test_on_a_terminal_a_bar_tells_and_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(stream: TextIO) -> None:
        monkeypatch.setattr(sys, "stderr", stream)
        with announce_calibration(describe_calibration("bf16")) as progress:
            progress(0, 100)
            progress(100, 100)

    monkeypatch.setenv("TERM", "xterm")
    shown = shown_on_terminal(work)
    assert "measuring this machine once for bf16" in shown and "100%" in shown
    assert shown.rstrip().endswith("\x1b[2K") and "\x1b[1A" in shown  # its line is erased


@pytest.mark.exhaustive
def test_processes_beside_all_cores_disturb_a_probe_of_all(users_policy: None) -> None:
    """No reference loop runs then; the threads' waits tell."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    so = naive.build(naive.PEAK)
    with Bench(TINY, len(cpus)) as bench, busy(*cpus, *cpus):
        assert any(bench.probe(so, "peak", 2e-2).dropped for _ in range(3))


@pytest.mark.exhaustive
def test_a_neighbour_changes_no_rate(users_policy: None) -> None:
    """A process on the same processor: the best of the undisturbed runs is what it was before."""
    allowed = os.sched_getaffinity(0)
    cpu = min(allowed)
    probe = [("peak", naive.build(naive.PEAK))]
    os.sched_setaffinity(0, {cpu})
    try:
        with Bench(TINY) as bench:
            alone = calibrate._rates(bench, probe, "probes", 0.02)["peak"]
        with Bench(TINY) as bench, busy(cpu):
            beside = calibrate._rates(bench, probe, "probes", 0.02)["peak"]
    finally:
        os.sched_setaffinity(0, allowed)
    assert beside > 0.75 * alone


@pytest.mark.exhaustive
def test_one_core_claims_no_rates_of_several(
    fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "PATIENCE_S", 0.0)
    monkeypatch.setattr(calibrate, "check_quiet", lambda what, measured: None)
    few = calibrate.kernels_for("portable", "f32")[:2]
    monkeypatch.setattr(calibrate, "kernels_for", lambda isa, x: few)
    monkeypatch.setattr(calibrate, "schedules_to_measure", lambda target: [])
    monkeypatch.setattr(
        calibrate, "fit_coefficients", lambda target, machine, trials, progress: machine
    )
    monkeypatch.delattr(calibrate, "_together")  # threads would share the core
    machine = calibrate.calibrate(replace(TARGET, cores=1))
    assert (machine.l3_all, machine.memory_all) == (machine.l3, machine.memory)


def test_the_schedules_chosen_tell_of_every_coefficient() -> None:
    names = fit.FITTED[:4]
    alike = [modelled({names[0]: 1.0}) for _ in range(20)]
    others = [modelled({name: 1.0}) for name in names[1:]]
    chosen = fit.choose_informative([*alike, *others], MEASURED, 5)
    assert len(chosen) == 5
    assert all(other in chosen for other in others)


def modelled(counts: dict[str, float]) -> fit.ModelledSchedule:
    schedule = Schedule.parse("p > brgemm_portable_f32_6x8")
    return fit.ModelledSchedule(TINY, schedule, 1.0, dict.fromkeys(fit.FITTED, 0.0) | counts)


def test_a_process_that_may_use_fewer_cores_takes_the_cpus_rates(fresh_cache: Path) -> None:
    """One under ``taskset`` is on the same machine; more cores were never measured."""
    few, many = replace(TARGET, cores=1), replace(TARGET, cores=4)
    assert calibrate.machine_path(few) == calibrate.machine_path(many)
    calibrate._store(calibrate.machine_path(TARGET), replace(MEASURED, cores=2))
    for cores, known in ((1, True), (2, True), (4, False)):
        assert (calibrate.load_rates(replace(TARGET, cores=cores)) is not None) == known


def test_peaks_of_threads_are_those_that_were_measured() -> None:
    machine = replace(MEASURED, peak=100.0, peak_all=180.0, cores=2)
    assert [machine.of_threads(threads) for threads in (1, 2, 3)] == [100.0, 180.0, 0.0]
