"""The wisdom command: what repair keeps, what import refuses and why."""

import json
import re
from pathlib import Path

import pytest

from polysci.tune.wisdom import Wisdom
from tests.support.command import done, polysci
from tests.support.records import SAMPLE, put
from tests.tune.test_wisdom_damage import damage

pytestmark = pytest.mark.usefixtures("fresh_cache", "uncapped")

LAYER = "mb1ic8ih10oc24oh10kh3ph1"
KEY = f"{LAYER} nhwc f32"
SCHEDULE = "p q:4 > brgemm_avx2_f32_4x24"
GOOD = SAMPLE | {"problem": KEY, "schedule": SCHEDULE}


def record() -> None:
    names = ("threads", "features", "level")
    what = {name: GOOD[name] for name in names}
    Wisdom().record(KEY, schedule=SCHEDULE, seconds_median=1e-3, host="h", **what)  # type: ignore[arg-type]


def test_nothing_is_written_for_or_into_damaged_records(tmp_path: Path) -> None:
    """No records would read as if there had been none: the errors name the remedy instead."""
    record()
    done("wisdom", "export", tmp_path / "good.json")
    damage(Wisdom().path, b"CREATE TABLE")
    before = Wisdom().path.read_bytes()
    for words in (
        ("export", tmp_path / "records.json"), ("import", tmp_path / "good.json"),
        ("forget", "--all"), ("forget", LAYER),
    ):  # fmt: skip
        ran = polysci("wisdom", *words)
        assert ran.returncode == 1 and "polysci wisdom repair" in ran.stderr, words
    assert not (tmp_path / "records.json").exists() and Wisdom().path.read_bytes() == before


@pytest.mark.exhaustive
def test_damaged_records_cost_a_warning_and_repair_keeps_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    record()
    damage(Wisdom().path, b"CREATE TABLE")
    ran = polysci("wisdom", "list")
    assert (ran.returncode, ran.stdout) == (0, "")
    assert re.search("polysci: no records: .*damaged .*polysci wisdom repair", ran.stderr)
    ran = polysci("optimize", LAYER, "--level", "wisdom-only")
    assert ran.returncode == 1 and "no record for mb1ic8ih10" in ran.stderr
    assert "without records" in caplog.text and "polysci wisdom repair" in caplog.text
    for command in (("optimize", "--level", "estimate"), ("explain", "--ranker", "polyscientist")):
        caplog.clear()
        assert LAYER in done(command[0], LAYER, *command[1:])
        assert "without records" in caplog.text and "polysci wisdom repair" in caplog.text
    assert "1 records" in done("wisdom", "repair")
    assert SCHEDULE in done("wisdom", "list", "--wide")


def import_records(tmp_path: Path, *records: dict[str, object]) -> tuple[int, str]:
    file = tmp_path / "records.json"
    content = {"format": "polysci-wisdom", "schema": 1, "records": records}
    file.write_text(json.dumps(content))
    ran = polysci("wisdom", "import", file)
    return ran.returncode, ran.stderr


@pytest.mark.parametrize(
    "problem",
    [
        KEY, f"{LAYER} nchw f32", f"{KEY} auto", "mm:4:12x8x6 f32",
        "nest C[4][5]+=A[4][6]*B[6][5] for i:4 j:5 k:6 : C[i][j] A[i][k] B[k][j] f32",
    ],
)  # fmt: skip
def test_records_of_every_operator_are_imported(tmp_path: Path, problem: str) -> None:
    schedule = SCHEDULE if problem.startswith("mb") else "i > brgemm_avx2_f32_4x24"
    schedule = f"t {schedule}" if problem.startswith("mm") else schedule
    assert import_records(tmp_path, GOOD | {"problem": problem, "schedule": schedule}) == (0, "")
    assert problem in done("wisdom", "list", "--wide")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"problem": "x"}, "problem 'x': expected its words"),
        ({"problem": LAYER}, "then layout and dtype"),
        ({"problem": f"{LAYER} nhwc f64"}, "f64"),
        ({"problem": f"{KEY} direct"}, "its records are under"),
        ({"problem": f"{KEY} winograd"}, "it is not winograd"),
        ({"schedule": "zz > brgemm_avx2_f32_4x24"}, "no dimension 'zz'"),
        ({"schedule": "c* p q:4 > brgemm_avx2_f32_4x24"}, r"parallel loop c\* carries"),
        ({"schedule": "p q:4 > brgemm_avx9_f32_4x24"}, "brgemm_avx9"),
        ({"schedule": "dance(3) p q:4 > brgemm_avx2_f32_4x24"}, "dance"),
    ],
)  # fmt: skip
def test_an_import_says_why_it_imported_nothing(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    status, told = import_records(tmp_path, GOOD, GOOD | change)
    assert status == 1 and "record 1: " in told and "nothing was imported" in told
    assert re.search(reason, told.split("record 1: ")[1]), told
    assert not Wisdom().list()


@pytest.fixture
def machines(tmp_path: Path) -> list[Path]:
    """Files of two machines; the second never timed one of the first's best schedules."""
    other = f"{KEY.replace('oc24', 'oc48')}"
    rows = (("a", KEY, SCHEDULE, 2e-3), ("a", other, SCHEDULE, 1e-3), ("b", KEY, SCHEDULE, 3e-3),
            ("b", KEY, "k:24 > kernel", 1e-3), ("b", other, "k:48 > kernel", 1e-3))  # fmt: skip
    for host, problem, schedule, seconds in rows:
        put(Wisdom(tmp_path / host), problem, schedule=schedule, seconds=seconds, host=host)
    return [tmp_path / "a", tmp_path / "b"]


def test_machines_beside_each_other(machines: list[Path]) -> None:
    head, first, second, *notes = done("wisdom", "compare", *machines, "--wide").splitlines()
    titles = ["problem", "threads", "A", "B", "A's on B", "B's on A"]
    assert re.split("  +", head)[:6] == titles
    assert first.split()[3:] == [
        "1", "2000.0", "us", "1000.0", "us", "3.000", "-", *SCHEDULE.split(), "k:24", ">", "kernel",
    ]  # fmt: skip
    assert second.split()[8:10] == ["-", "-"]
    assert notes[2] == (
        "A's best schedules take on B: 3.000 of its best (geomean), 1 of 2 timed there"
    )
    assert notes[3] == "B's best schedules take on A: no time, 0 of 2 timed there"
    assert notes[4] == (
        "A, one kernel for all: 1.000 of tuning each (geomean of the 2 of 2 that it was timed "
        "for): brgemm_avx2_f32_4x24"
    )
    assert (
        len(notes) == 8
        and max(map(len, done("wisdom", "compare", *machines).splitlines()[:3])) <= 80
    )
    rows = [
        json.loads(line) for line in done("wisdom", "compare", *machines, "--json").splitlines()
    ]
    assert rows[0]["first_on_second"] == {"schedule": SCHEDULE, "loss": 3.0, "near": False}
    assert rows[-1]["summary"]["geomean_loss"] == [pytest.approx(3), None]


def test_what_is_not_compared_is_one_line(machines: list[Path], tmp_path: Path) -> None:
    first, second = machines
    for words, status, told in (
        ((first, first), 2, f"{first}: given twice; its machines are told apart by --hosts A,B"),
        ((first, tmp_path / "no"), 1, f"{tmp_path / 'no'}: cannot be read: No such file or dire"),
        ((first, second, "--hosts", "a"), 2, "--hosts a: expected two names"),
        ((first, second, "--hosts", "a,x"), 2, f"{second}: no records of a machine 'x'; there are"),
    ):
        ran = polysci("wisdom", "compare", *words)
        (line,) = ran.stderr.splitlines()
        assert (ran.returncode, ran.stdout) == (status, "")
        assert line.startswith(f"polysci: error: {told}")
