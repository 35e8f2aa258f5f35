"""The record file: reuse, seeds, concurrency, and every fault injected for real."""

import json
import multiprocessing
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from polysci.cli import main
from polysci.errors import WisdomError
from polysci.tune.wisdom import LEVELS, TRIAL, Record, Repair, Wisdom, canonical_features
from tests.support.records import FEATURES, HERE, SAMPLE, put


@pytest.fixture
def wisdom(tmp_path: Path) -> Wisdom:
    return Wisdom(tmp_path / "deep" / "wisdom.sqlite")


def test_an_absent_file_holds_nothing_and_is_not_created(wisdom: Wisdom) -> None:
    assert wisdom.list() == ()
    assert wisdom.best("mb1ic64", 1, FEATURES, host=HERE) is None
    assert wisdom.seeds("mb1ic64", 1, FEATURES, host=HERE) == ()
    assert wisdom.forget("mb1ic64") == 0
    assert wisdom.repair() == Repair(None, 0)
    assert not wisdom.path.exists()


def test_the_default_file_is_in_the_cache_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(tmp_path / "cache"))
    assert Wisdom().path == tmp_path / "cache" / "wisdom.sqlite"


def test_best_is_the_fastest_of_this_very_host(wisdom: Wisdom) -> None:
    slow = put(wisdom, schedule="a > k", seconds=2e-3)
    fast = put(wisdom, schedule="b > k", seconds=1e-3)
    put(wisdom, schedule="c > k", seconds=1e-6, host="another")
    put(wisdom, schedule="d > k", seconds=1e-6, threads=2)
    assert wisdom.best("mb1ic64", 1, "fma avx2", host=HERE) == fast
    assert wisdom.best("mb1ic64", 1, "avx2,fma", host=HERE) == fast
    assert wisdom.best("mb1ic64", 1, "avx2", host=HERE) is None
    assert wisdom.best("mb1ic65", 1, FEATURES, host=HERE) is None
    wisdom.forget(schedule="b > k")
    assert wisdom.best("mb1ic64", 1, FEATURES, host=HERE) == slow


def test_best_asks_for_a_level_or_a_more_thorough_one(wisdom: Wisdom) -> None:
    measured = put(wisdom, level="measure", seconds=1e-3)
    patient = put(wisdom, level="patient", seconds=2e-3, schedule="other > k")
    assert wisdom.best("mb1ic64", 1, FEATURES, host=HERE) == measured
    assert wisdom.best("mb1ic64", 1, FEATURES, host=HERE, level="patient") == patient
    assert wisdom.best("mb1ic64", 1, FEATURES, host=HERE, level="exhaustive") is None


def test_equal_times_go_to_the_first_schedule_in_text_order(wisdom: Wisdom) -> None:
    put(wisdom, schedule="b > k")
    first = put(wisdom, schedule="a > k")
    assert wisdom.best("mb1ic64", 1, FEATURES, host=HERE) == first


def test_measured_again_replaces(wisdom: Wisdom) -> None:
    put(wisdom, seconds=1e-3)
    again = put(wisdom, seconds=3e-3)
    assert wisdom.list() == (again,)


def test_seeds_are_the_other_hosts_schedules_fastest_first_and_once(wisdom: Wisdom) -> None:
    put(wisdom, schedule="mine > k")
    put(wisdom, schedule="a > k", seconds=5e-3, host="x")
    put(wisdom, schedule="a > k", seconds=4e-3, host="y")
    put(wisdom, schedule="b > k", seconds=1e-3, host="y")
    put(wisdom, schedule="c > k", seconds=1e-9, host="x", threads=8)
    seeds = wisdom.seeds("mb1ic64", 1, FEATURES, host=HERE)
    assert [(seed.schedule, seed.host) for seed in seeds] == [
        ("b > k", "y"), ("a > k", "y"), ("c > k", "x")
    ]  # fmt: skip


def test_trials_are_kept_to_learn_from_and_answer_nothing(wisdom: Wisdom) -> None:
    assert tried(wisdom, {"a > k": 1e-6, "b > k": 2e-6}) == 2
    tried(wisdom, {"c > k": 1e-7}, host="another")
    for level in LEVELS:
        assert wisdom.best("mb1ic64", 1, FEATURES, host=HERE, level=level) is None
    assert wisdom.seeds("mb1ic64", 1, FEATURES, host=HERE) == ()
    slow = put(wisdom, seconds=1e-3)
    for level in (TRIAL, "estimate", "measure"):
        assert wisdom.best("mb1ic64", 1, FEATURES, host=HERE, level=level) == slow
    found = wisdom.measurements(HERE)
    assert [(r.schedule, r.seconds, r.level) for r in found] == [
        ("a > k", 1e-6, TRIAL), ("b > k", 2e-6, TRIAL), (slow.schedule, 1e-3, "measure")
    ]  # fmt: skip
    assert found[0].gflops == pytest.approx(2.0) and found[0].isa == "avx2"
    assert [r.schedule for r in wisdom.measurements("another")] == ["c > k"]
    assert wisdom.measurements(HERE, threads=2) == () == wisdom.measurements("nobody")


def test_of_several_levels_the_most_thorough_is_learned_from(wisdom: Wisdom) -> None:
    tried(wisdom, {"a > k": 1e-6})
    put(wisdom, schedule="a > k", level="patient", seconds=3e-6)
    put(wisdom, schedule="a > k", level="estimate", seconds=2e-6)
    put(wisdom, schedule="a > k", threads=2, seconds=4e-6)
    assert [record.seconds for record in wisdom.measurements(HERE)] == [3e-6, 4e-6]
    assert [record.seconds for record in wisdom.measurements(HERE, threads=1)] == [3e-6]


def test_trials_are_stored_together_or_not_at_all(wisdom: Wisdom) -> None:
    with pytest.raises(WisdomError, match="nothing was recorded: seconds"):
        tried(wisdom, {"a > k": 1e-6, "b > k": 0.0})
    assert tried(wisdom, {}) == 0
    assert not wisdom.path.exists()


def tried(wisdom: Wisdom, seconds: dict[str, float], host: str = HERE) -> int:
    return wisdom.record_trials(
        "mb1ic64", 1, FEATURES, seconds, host=host, flops=2000.0, isa="avx2"
    )


@pytest.mark.usefixtures("uncapped")
def test_the_command_lists_trials_when_asked(
    wisdom: Wisdom, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = wisdom.path.parent
    here.mkdir(mode=0o700)
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(here))
    put(wisdom, schedule="won > k")
    tried(wisdom, {"left > k": 1e-6})
    assert main(["wisdom", "list"]) == 0
    assert "won > k" in (text := capsys.readouterr().out) and "left > k" not in text
    assert main(["wisdom", "list", "--all", "--json"]) == 0
    records = map(json.loads, capsys.readouterr().out.splitlines())
    assert {r["schedule"]: r["level"] for r in records} == {"won > k": "measure", "left > k": TRIAL}


def test_forget_wants_a_criterion(wisdom: Wisdom) -> None:
    put(wisdom)
    put(wisdom, "mb1ic65")
    with pytest.raises(ValueError, match="at least one criterion"):
        wisdom.forget()
    assert wisdom.forget("mb1ic64", host="another") == 0
    assert wisdom.forget("mb1ic64", host=HERE) == 1
    assert [record.problem for record in wisdom.list()] == ["mb1ic65"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": 0.0}, "seconds: expected float in 1e-09..1e"),
        ({"seconds": float("nan")}, "seconds"),
        ({"threads": 0}, "threads: expected int"),
        ({"threads": True}, "threads"),
        ({"threads": 1.5}, "threads"),
        ({"level": "guess"}, "level: expected one of trial, estimate, measure"),
        ({"schedule": ""}, "schedule: expected 1 to"),
        ({"schedule": "a\nb"}, "printable"),
        ({"problem": "x" * 5000}, "problem"),
        ({"host": 3}, "host: expected a text"),
        ({"timestamp": "yesterday"}, "timestamp: expected UTC"),
        ({"isa": None}, "isa: expected a text"),
    ],
)
def test_a_record_is_checked(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Record(**SAMPLE | change)


def test_recording_nonsense_is_refused_and_writes_nothing(wisdom: Wisdom) -> None:
    with pytest.raises(WisdomError, match="nothing was recorded: seconds"):
        put(wisdom, seconds=-1.0)
    assert not wisdom.path.exists()


def test_files_that_cannot_be_read_or_written_are_named(wisdom: Wisdom, tmp_path: Path) -> None:
    with pytest.raises(WisdomError, match=r"absent\.json: cannot be read"):
        wisdom.import_(tmp_path / "absent.json", str)
    with pytest.raises(WisdomError, match=r"out\.json: cannot be written"):
        wisdom.export(tmp_path / "absent" / "out.json")
    (tmp_path / "file").touch()
    with pytest.raises(WisdomError, match="cannot be opened"):
        put(Wisdom(tmp_path / "file" / "wisdom.sqlite"))


def write_five(path: Path, number: int) -> None:
    wisdom = Wisdom(path)
    for turn in range(5):
        wisdom.record("p", 1, "avx2", "measure", f"{number}.{turn} > k", 1e-3, host="h")


@pytest.mark.exhaustive
def test_sixteen_processes_write_at_once(wisdom: Wisdom) -> None:
    forks = multiprocessing.get_context("fork")  # a fresh Python each would write in turn
    writers = [forks.Process(target=write_five, args=(wisdom.path, n)) for n in range(16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 16
    assert len(wisdom.list()) == 16 * 5


DYING = """
import os, pathlib, sys
from polysci.tune.wisdom import store
with store.open_to_write(pathlib.Path(sys.argv[1])) as connection:
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("UPDATE records SET schedule = schedule || problem")
    os.kill(os.getpid(), 9)
"""


@pytest.mark.exhaustive
def test_a_writer_killed_halfway_is_rolled_back_by_the_next_reader(wisdom: Wisdom) -> None:
    for number in range(100):
        put(wisdom, f"mb{number:03}" + "x" * 200)
    before = wisdom.list()
    done = subprocess.run([sys.executable, "-c", DYING, str(wisdom.path)], check=False)
    assert done.returncode == -9
    assert Path(f"{wisdom.path}-journal").stat().st_size > 4096
    assert wisdom.list() == before
    assert wisdom.repair() == Repair(None, 100)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Permissions do not bind the super-user: be nobody for a while."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)
        Path(name).chmod(0o755)


def test_a_read_only_file_can_be_read_and_says_so_when_written(shared_folder: Path) -> None:
    wisdom = Wisdom(shared_folder / "wisdom.sqlite")
    mine = put(wisdom)
    wisdom.path.chmod(0o444)
    shared_folder.chmod(0o555)
    with unprivileged():
        assert wisdom.list() == (mine,)
        with pytest.raises(WisdomError, match=r"is read-only .*POLYSCI_CACHE_DIR"):
            put(wisdom, "mb1ic65")
    assert wisdom.list() == (mine,)


def test_a_file_of_someone_else_is_named(shared_folder: Path) -> None:
    wisdom = Wisdom(shared_folder / "wisdom.sqlite")
    mine = put(wisdom)
    wisdom.path.chmod(0o000)
    shared_folder.chmod(0o555)
    with unprivileged(), pytest.raises(WisdomError, match=r"wisdom\.sqlite: cannot be opened"):
        wisdom.list()
    wisdom.path.chmod(0o600)
    assert wisdom.list() == (mine,)


def test_a_full_disk_keeps_what_is_there(wisdom: Wisdom) -> None:
    mine = put(wisdom)
    size = wisdom.path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with pytest.raises(WisdomError, match="already there are intact"):
            for number in range(200):
                put(wisdom, f"mb{number}" * 300)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert mine in wisdom.list()
    put(wisdom, "mb1ic65")


def test_garbage_is_reported_never_deleted_and_moved_aside_on_request(wisdom: Wisdom) -> None:
    wisdom.path.parent.mkdir()
    wisdom.path.write_bytes(b"not a database" * 100)
    for use in (wisdom.list, lambda: put(wisdom)):
        with pytest.raises(WisdomError, match=r"damaged .*nothing was deleted.*repair\(\)"):
            use()
    assert wisdom.path.read_bytes() == b"not a database" * 100
    done = wisdom.repair()
    assert done == Repair(wisdom.path.with_name("wisdom.sqlite.damaged-1"), 0)
    assert done.aside is not None and done.aside.read_bytes() == b"not a database" * 100
    mine = put(wisdom)
    assert wisdom.list() == (mine,)


@pytest.mark.exhaustive
def test_repair_keeps_what_can_still_be_read(wisdom: Wisdom) -> None:
    for number in range(300):
        put(wisdom, f"mb{number:03}" + "x" * 200)
    data = bytearray(wisdom.path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 8192] = b"\xa5" * 8192
    wisdom.path.write_bytes(data)
    with pytest.raises(WisdomError, match="damaged"):
        wisdom.list()
    done = wisdom.repair()
    assert done.aside is not None and done.aside.read_bytes() == bytes(data)
    assert 150 < done.kept < 300
    kept = {record.problem[:5] for record in wisdom.list()}
    assert len(kept) == done.kept and {"mb000", "mb299"} <= kept
    assert wisdom.repair() == Repair(None, done.kept)


def test_a_truncated_file_is_damaged(wisdom: Wisdom) -> None:
    for number in range(100):
        put(wisdom, f"mb{number:03}" + "x" * 200)
    os.truncate(wisdom.path, wisdom.path.stat().st_size // 2)
    with pytest.raises(WisdomError, match="damaged"):
        wisdom.list()
    assert wisdom.repair().aside is not None
    put(wisdom)


def test_a_record_edited_into_nonsense_is_damage(wisdom: Wisdom) -> None:
    put(wisdom)
    put(wisdom, "mb1ic65")
    with sqlite3.connect(wisdom.path) as connection:
        connection.execute("UPDATE records SET seconds = 'soon' WHERE problem = 'mb1ic65'")
    connection.close()
    with pytest.raises(WisdomError, match="a record with seconds"):
        wisdom.list()
    assert wisdom.repair().kept == 1
    assert [record.problem for record in wisdom.list()] == ["mb1ic64"]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("PRAGMA application_id = 1", "of another program"),
        ("PRAGMA user_version = 99", "has schema 99, this polysci reads 1 and 2: upgrade"),
    ],
)
def test_other_databases_are_left_alone(wisdom: Wisdom, statement: str, message: str) -> None:
    put(wisdom)
    with sqlite3.connect(wisdom.path) as connection:
        connection.execute(statement)
    connection.close()
    before = wisdom.path.read_bytes()
    for use in (wisdom.list, lambda: put(wisdom), wisdom.repair):
        with pytest.raises(WisdomError, match=message):
            use()
    assert wisdom.path.read_bytes() == before


def test_a_held_lock_is_waited_for_and_then_named(
    wisdom: Wisdom, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(wisdom)
    monkeypatch.setattr("polysci.tune.wisdom.store._BUSY_SECONDS", 0.2)
    holder = sqlite3.connect(wisdom.path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(WisdomError, match="locked by another process"):
        wisdom.list()
    holder.close()
    assert len(wisdom.list()) == 1


def test_paths_with_uri_characters_work(tmp_path: Path) -> None:
    wisdom = Wisdom(tmp_path / "a?mode=memory#%41 b" / "w.sqlite")
    mine = put(wisdom)
    assert wisdom.path.exists() and wisdom.list() == (mine,)


def test_a_journal_moves_with_its_database(wisdom: Wisdom) -> None:
    put(wisdom)
    shutil.copy(wisdom.path, f"{wisdom.path}-journal")
    aside = wisdom._move_aside()
    assert aside.exists() and Path(f"{aside}-journal").exists()
    assert not Path(f"{wisdom.path}-journal").exists()


def test_features_have_one_spelling() -> None:
    assert canonical_features("fma, avx2 fma") == canonical_features({"fma", "avx2"}) == "avx2 fma"
