"""Workers in processes of their own: killed, of another ISA, without their scheduler."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from distributed import Client, LocalCluster

from polysci.errors import FarmError
from polysci.farm import connect, optimize_all
from polysci.ops.matmul import Matmul
from polysci.ops.problem import Problem
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.tune import optimize
from polysci.tune.wisdom import Wisdom
from tests.support.command import done, process, started
from tests.support.compiling import saved, tiny
from tests.support.rates import write_rates
from tests.support.rehearsal import LOG, PAUSE, REHEARSAL, RehearsalRunner, timed

PROBLEMS: tuple[Problem, ...] = (Matmul(12, 16, 32), Matmul(4, 64, 8), Matmul(8, 8, 8))
pytestmark = pytest.mark.exhaustive
ROOT = Path(__file__).parents[2]


@pytest.fixture
def wisdom(tmp_path: Path) -> Wisdom:
    return Wisdom(tmp_path / "farm.sqlite")


@pytest.fixture
def rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timings that are made up take a tenth of a second and are logged."""
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    monkeypatch.setenv(PAUSE, "0.1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@contextmanager
def scheduler(folder: Path) -> Iterator[tuple[int, str]]:
    """A dask scheduler in a process of its own: its number and address."""
    file = folder / "scheduler.json"
    words = ["--scheduler-file", str(file), "--port", "0", "--no-dashboard", "--host", "127.0.0.1"]
    with started(sys.executable, "-m", "distributed.cli.dask_scheduler", *words) as running:
        while not (address := address_in(file)):
            assert running.poll() is None
            time.sleep(0.1)
        yield running.pid, address


def address_in(file: Path) -> str:
    """What a scheduler has written, if it is all there."""
    try:
        return str(json.loads(file.read_text())["address"])
    except (FileNotFoundError, ValueError):
        return ""


@contextmanager
def workers(
    address: str, *environments: dict[str, str], words: tuple[str, ...] = ()
) -> Iterator[None]:
    """A worker for each environment, started by our command, with more ``words``."""
    with ExitStack() as stack:
        for number, env in enumerate(environments):
            options = ["--nthreads", "1", "--name", f"w{number}", *words]
            command = ["env", *(f"{name}={value}" for name, value in env.items())]
            command += [sys.executable, "-m", "polysci", "farm", "worker", address, *options]
            stack.enter_context(started(*command))
        yield


def test_workers_that_are_killed(wisdom: Wisdom, tmp_path: Path, rehearsed: None) -> None:
    with (
        LocalCluster(
            n_workers=3, threads_per_worker=1, resources={"timing": 1}, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        farm = connect(client, REHEARSAL)
        pids = [*client.run(os.getpid).values()]

        def kill() -> None:
            for pid in pids[:2]:
                while len(timed()) < 6:
                    time.sleep(0.02)
                os.kill(pid, signal.SIGKILL)
                time.sleep(0.2)

        killer = Thread(target=kill, daemon=True)
        killer.start()
        results = list(optimize_all(PROBLEMS, farm, wisdom=wisdom))
        killer.join()
    alone = Wisdom(tmp_path / "alone.sqlite")
    for problem in PROBLEMS:
        one = optimize(
            problem, target=detect(), machine=assume_rates(detect()), wisdom=alone,
            make_runner=partial(RehearsalRunner, farm.machines[0].compiler),
        )  # fmt: skip
        (its,) = (it for it in results if it.problem.key == problem.key)
        assert its.result and its.result.schedule == one.schedule
    unstamped = [
        [replace(record, timestamp="2025-01-01T00:00:00Z") for record in records.list()]
        for records in (wisdom, alone)
    ]
    assert unstamped[0] == unstamped[1]  # the key of a record is unique


def test_the_last_worker_leaves_and_another_one_joins(
    wisdom: Wisdom, rehearsed: None, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"threads_per_worker": 1, "resources": {"timing": 1}, "dashboard_address": ":0"}
    with (
        LocalCluster(n_workers=1, processes=False, **options) as cluster,
        Client(cluster) as client,
    ):
        farm = connect(client, REHEARSAL)

        def replace_worker() -> None:
            while len(timed()) < 3:
                time.sleep(0.02)
            cluster.scale(0)
            while "no worker is left; waiting for one to join" not in caplog.text:
                time.sleep(0.02)
            cluster.scale(1)

        replacer = Thread(target=replace_worker, daemon=True)
        replacer.start()
        results = list(optimize_all(PROBLEMS, farm, wisdom=wisdom))
        replacer.join()
    assert len(results) == len(PROBLEMS) and all(it.result for it in results)
    assert caplog.text.count("no worker is left") == 1


def test_a_scheduler_that_dies(wisdom: Wisdom, tmp_path: Path, rehearsed: None) -> None:
    with (
        scheduler(tmp_path) as (pid, address), workers(address, {}, {}),
        Client(address, timeout=30) as client,
    ):  # fmt: skip
        farm = connect(client, REHEARSAL)

        def kill() -> None:
            while len(timed()) < 6:
                time.sleep(0.02)
            os.kill(pid, signal.SIGKILL)

        killer = Thread(target=kill, daemon=True)
        killer.start()
        with pytest.raises(FarmError, match="the scheduler is gone; what was measured is"):
            list(optimize_all(PROBLEMS, farm, wisdom=wisdom))
        killer.join()
    before = {record.schedule for record in wisdom.list()}
    assert before
    log = tmp_path / "log"
    log.rename(tmp_path / "first")
    (tmp_path / "scheduler.json").unlink()
    with (
        scheduler(tmp_path) as (_, address), workers(address, {}),
        Client(address, timeout=30) as client,
    ):  # fmt: skip
        farm = connect(client, REHEARSAL)
        assert all(it.result for it in optimize_all(PROBLEMS, farm, wisdom=wisdom))
    finished = {record.schedule for record in wisdom.list() if record.level == "trial"}
    assert finished >= {*timed()} and len(timed()) < len(finished)


def test_a_worker_that_does_whole_searches(
    fresh_cache: Path, wisdom: Wisdom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polysci.farm.tuning.MANY", 1)
    options = {"threads_per_worker": 1, "resources": {"timing": 1}, "dashboard_address": ":0"}
    with (
        LocalCluster(n_workers=1, processes=False, **options) as cluster,
        Client(cluster) as client,
    ):
        results = list(optimize_all(PROBLEMS, client, wisdom=wisdom))
    measured = [it.result and it.result.measurement for it in results]
    assert len(results) == len(PROBLEMS) and all(its and its.recorded for its in measured)
    assert sum(record.level == "measure" for record in wisdom.list()) == len(PROBLEMS)


def test_two_instruction_sets_are_one_library(
    fresh_cache: Path, tmp_path: Path, uncapped: None
) -> None:
    if detect().isa.name == "portable":
        pytest.skip("this CPU has one instruction set")
    for isa in (None, "portable"):
        write_rates(assume_rates(detect(isa)), detect(isa), "f32")
    with scheduler(tmp_path) as (_, address), workers(address, {}, {"POLYSCI_ISA": "portable"}):
        while "2 workers" not in (status := process("farm", "status", address).stdout):
            time.sleep(0.5)
        assert "dashboard: none" in status
        table = done("optimize", "mm:8x16x16", "--scheduler", address)
        assert table.count("brgemm_portable_f32") == 1 and table.count("machine-") == 2
        out = tmp_path / "layer"
        done("export", "mm:8x16x16", "--scheduler", address, "-o", out)
    text = (out / "layer.c").read_text() if (out / "layer.c").exists() else ""
    assert {record.isa for record in Wisdom().list()} == {detect().isa.name, "portable"}
    names = [path.name for path in out.iterdir()]
    assert any("portable" in name for name in names) or "portable" in text, names


def test_a_network_is_searched_by_workers(fresh_cache: Path, tmp_path: Path) -> None:
    path = saved(tiny(), tmp_path / "tiny.onnx")
    with scheduler(tmp_path) as (_, address), workers(address, {}, {}):
        words = ("compile", path, "--scheduler", address, "--level", "measure", "--json")
        ran = process(*words, timeout=300)
        again = process(*words, timeout=300)
    assert ran.returncode == 0, ran.stderr
    *_, whole = map(json.loads, ran.stdout.splitlines())
    assert whole["level"] == "measure" and whole["latency_ms"] > 0
    layers = {record.problem for record in Wisdom().list() if record.level == "measure"}
    assert len(layers) >= 2 and again.returncode == 0, again.stderr


@pytest.mark.parametrize("wanted", ["scheduler", "interrupt"])
def test_a_search_for_a_network_that_is_cut_off_goes_on(
    wanted: str, fresh_cache: Path, tmp_path: Path
) -> None:
    path = saved(tiny(), tmp_path / "tiny.onnx")
    words = ("compile", str(path), "--level", "measure", "--scheduler")
    message = "the same command goes on" if wanted == "scheduler" else "what was measured is kept"
    with (
        scheduler(tmp_path) as (pid, address), workers(address, {}),
        started(sys.executable, "-m", "polysci", *words, address) as running,
    ):  # fmt: skip
        while not Wisdom().list():
            assert running.poll() is None
            time.sleep(0.1)
        if wanted == "scheduler":
            os.kill(pid, signal.SIGKILL)
        else:
            running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=120)
    assert running.returncode == (1 if wanted == "scheduler" else 130), told
    assert message in told and "Traceback" not in told
    before = {(its.problem, its.schedule) for its in Wisdom().list()}
    (tmp_path / "scheduler.json").unlink(missing_ok=True)
    with scheduler(tmp_path) as (_, address), workers(address, {}):
        done(*words, address)
    after = Wisdom().list()
    keys = [(its.problem, its.threads, its.level, its.schedule) for its in after]
    assert len(keys) == len({*keys}) and before <= {(its.problem, its.schedule) for its in after}


def test_ctrl_c_keeps_what_was_measured(fresh_cache: Path, tmp_path: Path) -> None:
    with scheduler(tmp_path) as (_, address), workers(address, {}):
        words = ("optimize", "mm:512x512x512", "--level", "patient", "--scheduler", address)
        with started(sys.executable, "-m", "polysci", *words) as running:
            while not Wisdom().list():
                assert running.poll() is None
                time.sleep(0.1)
            running.send_signal(signal.SIGINT)
            assert running.wait(60) == 130
        assert Wisdom().list()
