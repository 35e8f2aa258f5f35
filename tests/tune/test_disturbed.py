"""What was measured on a busy machine: marked, measured again, never taken for the truth."""

import logging
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

from polysci import tune
from polysci.cli import layers, optimize
from polysci.measure.bench import Bench, Candidate, CandidateError
from polysci.measure.samples import MOST_TURNS, Sample, Samples
from polysci.ops.convolutions import Conv2d
from polysci.runtime.measurement import Measurement, host_of, parse
from polysci.target.host import detect
from polysci.tune.wisdom import TRIAL, Wisdom, store
from tests.support.command import done, polysci
from tests.support.records import FEATURES, HERE, put

TARGET = detect("portable")
TINY = Conv2d(N=1, C=5, H=6, W=6, K=8, R=3, S=3, pad=1)
DISTURBED = {"dropped": 0.9}


@pytest.fixture
def wisdom(tmp_path: Path) -> Wisdom:
    return Wisdom(tmp_path / "wisdom.sqlite")


def test_a_clean_record_replaces_disturbed_ones(wisdom: Wisdom) -> None:
    put(wisdom, schedule="a > k", seconds=1e-4, **DISTURBED)
    best = wisdom.best("mb1ic64", 1, FEATURES, host=HERE)
    assert best is not None and best.disturbed and "(disturbed)" in str(best)
    put(wisdom, schedule="b > k", seconds=2e-4)
    assert [record.schedule for record in wisdom.list()] == ["b > k"]
    put(wisdom, schedule="c > k", seconds=1e-4, **DISTURBED)  # faster, but not to be believed
    best = wisdom.best("mb1ic64", 1, FEATURES, host=HERE)
    assert best is not None and best.schedule == "b > k"


def test_a_file_of_the_first_schema_is_read_and_then_brought_up_to_date(wisdom: Wisdom) -> None:
    put(wisdom)
    with closing(sqlite3.connect(wisdom.path)) as connection:
        for name in ("dropped", "spread", "speed"):
            connection.execute(f"ALTER TABLE records DROP COLUMN {name}")
        connection.execute("PRAGMA user_version = 1")
        connection.commit()
    (old,) = wisdom.list()
    assert not old.disturbed and old.speed == 1
    assert wisdom.repair().kept == 1
    put(wisdom, schedule="b > k", **DISTURBED)
    marks = {record.schedule: record.disturbed for record in wisdom.list()}
    assert marks == {"k:64 p > kernel": False, "b > k": True}
    with store.open_to_read(wisdom.path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (store.SCHEMA,)


def test_measurements_of_before_read_as_undisturbed() -> None:
    its = Measurement((1e-3,), 10, "p > k", "warm", 1, "h", dropped=0.9, speed=0.5)
    assert its.disturbed and parse(str(its)) == its
    text = str(its).replace(', "dropped": 0.9, "speed": 0.5', "")
    assert text != str(its) and not parse(text).disturbed


Times = tuple[float, float, bool]  # seconds of parallel and of serial schedules; disturbed


class ScriptedBench(Bench):
    """Times that are made up."""

    times: Times
    probes: ClassVar[list[str]] = []
    probed = Samples([Sample(1e-12)] * 3)

    def check(self, *words: Any) -> None:
        pass

    def watch(self, so: Path, symbol: str, least: float) -> None:
        pass

    def probe(self, so: Path, symbol: str, *_: Any, **__: Any) -> Samples:
        self.probes.append(symbol)
        return self.probed

    def time(self, candidates: Sequence[Candidate], **options: Any) -> list[Samples]:
        parallel, serial, disturbed = self.times
        samples = []
        for path, _ in candidates:
            text = next(path.parent.glob("source*.c")).read_text()
            seconds = parallel if "omp parallel" in text else serial
            samples.append(Samples([Sample(seconds, waited=0.5 * disturbed)] * 5))
        return samples


def search(
    monkeypatch: pytest.MonkeyPatch,
    wisdom: Wisdom,
    first: Times,
    repeated: Times | None = None,
    **options: Any,
) -> tune.Result:
    """A search by two threads; what is repeated has other times."""

    def watch(step: tune.Progress) -> None:
        if step.stage == "repeating" and repeated:
            ScriptedBench.times = repeated

    ScriptedBench.times = first
    monkeypatch.setattr("polysci.tune.runner.Bench", ScriptedBench)
    monkeypatch.setattr("polysci.tune.trials.PAUSE_S", 0)
    return tune.optimize(LARGE, threads=2, target=TARGET, wisdom=wisdom, progress=watch, **options)


LARGE = Conv2d(N=1, C=32, H=28, W=28, K=32, R=3, S=3, pad=1)


@pytest.mark.exhaustive
def test_parallel_candidates_that_are_all_slow_are_timed_again(
    monkeypatch: pytest.MonkeyPatch, wisdom: Wisdom
) -> None:
    busy, quiet = (1.0, 1e-3, True), (1e-4, 1e-3, False)
    result = search(monkeypatch, wisdom, busy, quiet)
    assert result.schedule.parallel and result.measurement is not None
    assert result.measurement.median == 1e-4 and not result.measurement.disturbed


@pytest.mark.exhaustive
def test_a_machine_that_stays_busy_leaves_a_mark_and_no_lasting_choice(
    monkeypatch: pytest.MonkeyPatch, wisdom: Wisdom, caplog: pytest.LogCaptureFixture
) -> None:
    result = search(monkeypatch, wisdom, (1.0, 1.0, True))
    assert result.measurement is not None and result.measurement.disturbed
    (record,) = wisdom.list()
    assert record.disturbed  # and no trial to learn from
    with caplog.at_level(logging.WARNING):
        again = search(monkeypatch, wisdom, (1e-4, 1e-3, False))
    assert "measuring again" in caplog.text
    assert again.measurement is not None and not again.measurement.recorded
    assert not any(record.disturbed for record in wisdom.list())
    third = search(monkeypatch, wisdom, (9.0, 9.0, True))
    assert third.measurement is not None and third.measurement.recorded


@pytest.mark.exhaustive
def test_a_disturbed_peak_is_repeated_and_marked(
    monkeypatch: pytest.MonkeyPatch, wisdom: Wisdom
) -> None:
    """Times of schedules may be clean where no run of the peak is."""
    for waited, runs in ((0.0, 1), (0.5, MOST_TURNS)):
        probe = Samples([Sample(1e-12, waited=waited)] * 3)
        ScriptedBench.probes.clear()
        monkeypatch.setattr(ScriptedBench, "probed", probe)
        result = search(monkeypatch, wisdom, (1e-4, 1e-3, False), again=True)
        assert result.measurement is not None and not result.measurement.disturbed
        assert result.measurement.peak_disturbed == (waited > 0)
        assert ScriptedBench.probes == ["peak"] * runs
        layer = layers.TunedLayer(LARGE, result, "")
        assert optimize.row(layer)["peak_disturbed"] == (waited > 0)
        table = optimize._table([layer], None)
        assert ("% of peak (!): other work disturbed the run of the peak" in table) == (waited > 0)
        assert parse(str(result.measurement)) == result.measurement


@pytest.mark.exhaustive
def test_again_measures_where_there_is_a_record_and_replaces_it(
    monkeypatch: pytest.MonkeyPatch, wisdom: Wisdom
) -> None:
    wrong = "p* q:7 k:4 > brgemm_portable_f32_7x4"  # in a time that nothing has
    what = LARGE.key, 2, TARGET.isa.features, "measure", wrong, 1e-9
    wisdom.record(*what, host=host_of(TARGET))
    first = search(monkeypatch, wisdom, (1e-4, 1e-3, False))
    assert str(first.schedule) == wrong and first.measurement and first.measurement.recorded
    result = search(monkeypatch, wisdom, (1e-4, 1e-3, False), again=True)
    assert result.measurement is not None and not result.measurement.recorded
    kept = [record.schedule for record in wisdom.list() if record.level != TRIAL]
    assert kept == [str(result.schedule)] != [wrong]


@pytest.mark.exhaustive
def test_a_candidate_that_fails_when_it_is_repeated_falls_out(
    monkeypatch: pytest.MonkeyPatch, wisdom: Wisdom
) -> None:
    whole = ScriptedBench.time

    def time(
        bench: ScriptedBench, candidates: Sequence[Candidate], **options: Any
    ) -> list[Samples]:
        if len(candidates) > 1 and not options.get("eliminate") and not failed:
            failed.append(candidates[0])
            raise CandidateError(candidates[0], "crashed")
        return whole(bench, candidates, **options)

    failed: list[Candidate] = []
    monkeypatch.setattr(ScriptedBench, "time", time)
    result = search(monkeypatch, wisdom, (1.0, 1.0, True), (1e-4, 1e-3, False))
    assert failed and [trial.fault for trial in result.trials if trial.fault]
    assert result.measurement is not None and result.measurement.median == 1e-4


@pytest.mark.usefixtures("uncapped")
def test_records_are_forgotten_by_command(fresh_cache: Path) -> None:
    words = str(TINY)
    wisdom = Wisdom()
    for key, quality in ((TINY.key, {}), (f"{TINY.key} auto", {}), ("other", DISTURBED)):
        wisdom.record(key, 1, FEATURES, "measure", "p > k", 1e-3, host=host_of(TARGET), **quality)
    assert '"disturbed": true' in done("wisdom", "list", "--json")
    assert done("wisdom", "forget", "--disturbed").startswith("1 record deleted")
    assert done("wisdom", "forget", words, "--disturbed").startswith("0 records")
    assert done("wisdom", "forget", words).startswith("2 records deleted")
    wisdom.record("other", 1, FEATURES, "measure", "p > k", 1e-3, host=HERE)
    assert done("wisdom", "forget", "--all").startswith("1 record ")
    wrong = polysci("wisdom", "forget")
    assert wrong.returncode == 2 and "--disturbed" in wrong.stderr
