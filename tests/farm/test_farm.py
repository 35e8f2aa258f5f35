"""Searches on workers of one process, whose times are made up: what is asked, kept and repeated."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

from polysci.errors import BuildError, FarmError, SpecError
from polysci.farm import Farm, FarmTasks, connect, optimize_all, tasks
from polysci.farm.cluster import POLL_S
from polysci.farm.tasks import own_machine, share_machine
from polysci.ops.matmul import Matmul
from polysci.ops.problem import Problem
from polysci.runtime.build import cache
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.tune import optimize
from polysci.tune.wisdom import Record, Wisdom
from tests.support.rehearsal import LAST, LOG, PAUSE, REHEARSAL, SLOW, RehearsalRunner, timed

PROBLEMS: tuple[Problem, ...] = (Matmul(12, 16, 32), Matmul(4, 64, 8))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Three workers that take times, in threads of this process."""
    with (
        LocalCluster(
            n_workers=3, threads_per_worker=1, processes=False, resources={"timing": 1},
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        yield client


@pytest.fixture
def farm(client: Client) -> Farm:
    return connect(client, REHEARSAL)


@pytest.fixture
def wisdom(tmp_path: Path) -> Wisdom:
    return Wisdom(tmp_path / "farm.sqlite")


def contents(records: tuple[Record, ...]) -> list[tuple[object, ...]]:
    """All of the records but when they were made."""
    return [astuple(replace(record, timestamp="2025-01-01T00:00:00Z")) for record in records]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("ranked_here", "many"), [(0, 16), (4, 1), pytest.param(4, 16, marks=pytest.mark.exhaustive)]
)
def test_the_same_winners_and_records_as_one_process(
    ranked_here: int, many: int, farm: Farm, wisdom: Wisdom, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    monkeypatch.setattr("polysci.farm.tuning.RANKED_HERE", ranked_here)
    monkeypatch.setattr("polysci.farm.tuning.MANY", many)
    (machine,) = farm.machines
    farm.machines = (replace(machine, workers=machine.workers[:1]),)  # fewer than searches
    results = list(optimize_all([*PROBLEMS, *PROBLEMS], farm, wisdom=wisdom))
    assert len(results) == len(PROBLEMS)
    whole = [line for line in timed() if line.startswith("whole ")]
    assert len(whole) == len(timed()) == len(PROBLEMS) if many == 1 else not whole and timed()
    winners = {str(it.problem): str(it.result and it.result.schedule) for it in results}
    alone = Wisdom(tmp_path / "alone.sqlite")
    for problem in PROBLEMS:
        result = optimize(
            problem, target=detect(), machine=assume_rates(detect()), wisdom=alone,
            make_runner=partial(RehearsalRunner, machine.compiler),
        )  # fmt: skip
        assert winners[str(problem)] == str(result.schedule)
    assert contents(wisdom.list()) == contents(alone.list())


def test_a_search_that_was_cut_off_goes_on(
    farm: Farm, wisdom: Wisdom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    monkeypatch.setenv(LAST, "6")
    with pytest.raises(FarmError, match="no more"):
        list(optimize_all(PROBLEMS, farm, wisdom=wisdom))
    monkeypatch.delenv(LAST)
    before = contents(wisdom.list())
    assert before
    whole = connect(farm.client, REHEARSAL)
    finished = list(optimize_all(PROBLEMS, whole, wisdom=wisdom))
    assert all(it.result and it.result.measurement for it in finished)
    times = [record for record in wisdom.list() if record.level == "trial"]
    assert {record.schedule for record in times} == {*timed()}
    kept = {record.schedule for record in times if astuple(record)[:6] in {it[:6] for it in before}}
    assert kept and all(timed().count(text) == 1 for text in kept)


@pytest.mark.exhaustive
def test_a_scheduler_that_answers_slowly(
    farm: Farm, wisdom: Wisdom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later than this process looks at the clock, while two searches wait for the same rates."""
    gather = Client._gather_remote

    async def gather_late(self: Client, *words: bool) -> dict[str, object]:
        await asyncio.sleep(2 * POLL_S)
        return dict(await gather(self, *words))

    monkeypatch.setattr(Client, "_gather_remote", gather_late)
    problems = [Matmul(1, 1, columns) for columns in (8, 16)]
    results = list(optimize_all(problems, farm, wisdom=wisdom, time_limit=5.0))
    assert len(results) == 2 and all(it.result for it in results)


@pytest.mark.exhaustive
def test_a_worker_that_drifts_is_set_aside_and_its_times_are_repeated(
    farm: Farm, wisdom: Wisdom, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    workers = farm.client.scheduler_info(n_workers=-1)["workers"]
    names = {worker["name"]: address for address, worker in workers.items()}
    for address in names.values():  # what all of them had before one drifts
        assert farm.accepts(farm.machines[0], 1, address, 50.0)
    monkeypatch.setenv(SLOW, str(min(names)))
    with caplog.at_level(logging.WARNING):
        results = list(optimize_all(PROBLEMS, farm, wisdom=wisdom))
    assert farm.aside == [names[min(names)]] and "set aside" in caplog.text
    assert all(it.result for it in results)
    assert min(record.seconds for record in wisdom.list()) >= 1e-3  # none of that worker's


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "0.0+other"}, r"polysci 0\.0\+other, and this is .*: install the same"),
        ({"resources": {}}, "none of 3 workers has the resource timing=1"),
    ],
)
def test_workers_that_do_not_fit(client: Client, change: dict[str, object], message: str) -> None:
    def describe(dask_worker: object = None) -> tasks.Answer:
        return tasks.describe(dask_worker) | change

    with pytest.raises(FarmError, match=message):
        connect(client, FarmTasks(describe))


@pytest.mark.parametrize("wrap", [ModuleNotFoundError, lambda text: RuntimeError(repr(text))])
def test_a_worker_without_polysci(client: Client, wrap: Callable[[str], Exception]) -> None:
    """Dask sends the error as it is, or as a text in another one."""

    def describe(dask_worker: object = None) -> tasks.Answer:
        raise wrap("No module named 'polysci'")

    with pytest.raises(FarmError, match=r"polysci is not installed there; install \d"):
        connect(client, FarmTasks(describe))


def test_machines_that_differ_in_their_compilers_alone(client: Client) -> None:
    def describe(dask_worker: tasks.Any = None) -> tasks.Answer:
        compiler = f"gcc {dask_worker.name}"
        machine = tasks.fingerprint(detect(), compiler)
        return tasks.describe(dask_worker) | {"compiler": compiler, "machine": machine}

    with pytest.raises(FarmError, match="differ in nothing but their compilers"):
        connect(client, FarmTasks(describe))


def test_a_level_that_measures_nothing(farm: Farm) -> None:
    with pytest.raises(SpecError, match="level 'estimate': a farm measures; expected one of"):
        list(optimize_all(PROBLEMS, farm, "estimate"))


def test_time_that_is_up_before_anything_is_measured(farm: Farm, wisdom: Wisdom) -> None:
    (first, *_) = optimize_all(PROBLEMS, farm, wisdom=wisdom, time_limit=1e-9)
    assert first.result is None and "the time is up" in first.fault


def test_time_that_is_up_while_the_first_are_measured(
    farm: Farm, wisdom: Wisdom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PAUSE, "0.6")
    (its,) = optimize_all(PROBLEMS[:1], farm, wisdom=wisdom, time_limit=0.3)
    assert its.result is None
    assert its.fault == f"{PROBLEMS[0]}: time was up before anything was measured"


def test_builds_travel_and_keep_their_digest(fresh_cache: Path, tmp_path: Path) -> None:
    code = b"not really code"
    entry = f'{{"sha256": "{hashlib.sha256(code).hexdigest()}", "so": "x.so"}}'
    key = "0" * 64
    cache.unpack(key, entry, code)
    (path,) = (fresh_cache / "builds" / key).glob("*.so")
    packed = cache.pack(path)
    assert packed[0] == key and packed[2] == code
    cache.unpack(*packed)
    for wrong in ((key[:-1] + "1", entry, code + b"!"), ("../0", entry, code)):
        with pytest.raises(BuildError, match="its digest differs"):
            cache.unpack(*wrong)


def test_a_timing_has_the_machine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    from concurrent.futures import ThreadPoolExecutor
    from time import monotonic, sleep

    def work(alone: bool) -> tuple[float, float, bool]:
        with own_machine() if alone else share_machine():
            start = monotonic()
            sleep(0.02)
            return start, monotonic(), alone

    with ThreadPoolExecutor(6) as pool:
        spans = sorted(pool.map(work, [True, False, False] * 4))
    for (_, end, first), (start, _, second) in pairwise(spans):
        assert end <= start or not (first or second)
