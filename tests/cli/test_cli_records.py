"""Commands say which times come from records, and which of those other work disturbed."""

import json
from pathlib import Path

import pytest

from polysci.cli.schedulers import describe_result
from polysci.lower.choice import key_of
from polysci.network.report import NetworkReport, StageRow
from polysci.ops import parse_problem
from polysci.runtime.measurement import host_of
from polysci.target.host import detect
from polysci.tune import optimize
from polysci.tune.wisdom import Wisdom
from tests.support.command import done, polysci

LAYER = "mb1ic4ih6oc8kh3ph1"
PLAN = "k:4 p q:3 > brgemm_portable_f32_3x4"
WINOGRAD = "winograd(2) > brgemm_portable_f32_6x4"
PORTABLE = ("--isa", "portable")
DISTURBED = "disturbed: 90 % of the samples dropped"
pytestmark = pytest.mark.usefixtures("fresh_cache")


def record(
    seconds: float = 1e-3, plan: str = PLAN, level: str = "measure", algorithm: str = "direct",
    **quality: float,
) -> None:  # fmt: skip
    target, key = detect("portable"), key_of(parse_problem(LAYER, "nhwc"), algorithm)
    Wisdom().record(key, 1, target.isa.features, level, plan, seconds,
                    host=host_of(target), isa="portable", **quality)  # fmt: skip


@pytest.mark.exhaustive
def test_explain_says_that_a_time_is_from_a_record() -> None:
    record()
    text = done("explain", LAYER, *PORTABLE)
    assert "from a record" in text and "disturbed" not in text
    members = json.loads(done("explain", LAYER, *PORTABLE, "--json"))
    assert (members["recorded"], members["disturbed"], members["dropped"]) == (True, False, 0.0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("words", [(), ("--schedule", PLAN)])
def test_explain_marks_a_disturbed_record(words: tuple[str, ...]) -> None:
    record(dropped=0.9, speed=0.5)
    text = done("explain", LAYER, *PORTABLE, *words, "--wide")
    assert f"{DISTURBED}; a loop of known work ran at 50 % of its speed" in text
    members = json.loads(done("explain", LAYER, *PORTABLE, *words, "--json"))
    assert (members["recorded"], members["disturbed"], members["dropped"]) == (True, True, 0.9)


def test_explain_marks_a_disturbed_record_of_another_algorithm() -> None:
    record(plan=WINOGRAD, algorithm="winograd", dropped=0.9)
    words = ("explain", LAYER, *PORTABLE, "--algorithm", "winograd")
    assert "from a record" in (text := done(*words)) and DISTURBED in text
    assert json.loads(done(*words, "--json"))["disturbed"] is True


@pytest.mark.exhaustive
def test_explain_prefers_an_undisturbed_time_of_a_schedule() -> None:
    record(2e-3, level="measure")
    record(1e-3, level="patient", dropped=0.9)
    members = json.loads(done("explain", LAYER, *PORTABLE, "--schedule", PLAN, "--json"))
    assert members["measured_seconds"] == 2e-3 and not members["disturbed"]


@pytest.mark.exhaustive
def test_explain_of_what_was_never_measured_says_nothing() -> None:
    members = json.loads(done("explain", LAYER, *PORTABLE, "--json"))
    assert members["recorded"] is members["disturbed"] is members["dropped"] is None


@pytest.mark.parametrize(("dropped", "marked"), [(0.0, False), (0.9, True)])
def test_a_report_marks_records_and_disturbed_times(
    tmp_path: Path, dropped: float, marked: bool
) -> None:
    record(dropped=dropped)
    path = tmp_path / "x.html"
    done("report", LAYER, *PORTABLE, "--level", "wisdom-only", "-o", path)
    page = path.read_text(encoding="utf-8")
    assert "1 of 1 layers from records of earlier searches" in page and "from a record" in page
    assert (DISTURBED in page) == ("1 of 1 measured times are disturbed" in page) == marked
    assert ('title="disturbed: 90 %' in page) == marked


def test_a_disturbed_record_is_no_point_of_a_rank_scatter(tmp_path: Path) -> None:
    record()
    record(9.0, "k:4 p q:2 > brgemm_portable_f32_2x4", "trial", dropped=0.9)
    path = tmp_path / "x.html"
    done("report", LAYER, *PORTABLE, "--level", "wisdom-only", "-o", path)
    assert "brgemm_portable_f32_2x4" not in path.read_text(encoding="utf-8")


def test_progress_marks_disturbed_times(tmp_path: Path) -> None:
    record(dropped=0.9)
    words = (LAYER, *PORTABLE, "--level", "wisdom-only")
    for command in (("optimize", *words), ("report", *words, "-o", tmp_path / "x.html")):
        assert "(disturbed)" in polysci(*command).stderr
    level, problem = "wisdom-only", parse_problem(LAYER, "nhwc")
    assert "(disturbed)" in describe_result(optimize(problem, level, isa="portable"))


def test_a_network_counts_them() -> None:
    rows = [
        StageRow("a", "s", 1e-3, 0.5, 1.0, 0.1, 1e-3, *marks)
        for marks in ((False, False), (True, False), (True, True))
    ]
    told = NetworkReport("net", tuple(rows), 3e-3, 3e-3, 3e-3, 0, 0, 0, "measure").summary()
    line = "of the layers of 3 stages, timed alone: 2 from records, 1 disturbed"
    assert any(text.startswith(line) for text in told)
    told = NetworkReport("net", tuple(rows[:1]), 3e-3, 3e-3, 3e-3, 0, 0, 0, "measure").summary()
    assert not any("records" in text for text in told)
