"""The wisdom command: what repair keeps, what import refuses and why."""

import json
import re
from pathlib import Path

import pytest

from polysci.tune.wisdom import Wisdom
from tests.support.command import done, polysci
from tests.support.records import SAMPLE
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
