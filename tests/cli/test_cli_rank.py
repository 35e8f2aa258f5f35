"""polysci rank: its output and exit status."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from polysci.cli.rank import Ranking, distinct, rank_choices, score_ranking
from polysci.cost import RANKERS
from polysci.cost.shortlist import choices, cost_of
from polysci.errors import CheckError
from polysci.ops import parse_problem
from polysci.target.machine import assume_rates
from polysci.target.machine_file import MachineFile
from tests.support.command import polysci, started
from tests.support.samples import FIXED, fixed_context

LAYER = "mb1ic8ih10oc24oh10kh3ph1"
OTHER = "mb1ic16ih10oc32kh1"


def rank(*words: str) -> subprocess.CompletedProcess[str]:
    return polysci("rank", *words)


@pytest.fixture
def described(tmp_path: Path) -> str:
    path = tmp_path / "other.toml"
    path.write_text(MachineFile(FIXED, assume_rates(FIXED)).to_toml())
    return str(path)


def rows(ran: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_the_rankers_are_listed() -> None:
    ran = rank("--list", "--wide")
    assert ran.returncode == 0
    assert [line.split()[0] for line in ran.stdout.splitlines()] == list(RANKERS)
    assert RANKERS["traffic"].summary in ran.stdout
    assert [row["ranker"] for row in rows(rank("--list", "--json"))] == list(RANKERS)


def test_every_ranker_shows_its_first_schedules(described: str) -> None:
    """One that cannot run is told of, and does not fail the command."""
    ran = rank(LAYER, "--machine", described, "--top", "2")
    assert ran.returncode == 0, ran.stderr
    assert "without learned: ranker 'learned'" in ran.stdout and "polysci learn" in ran.stdout
    for name in RANKERS:
        assert name in ran.stdout
    assert "[1/1]" in ran.stderr


def test_rows_are_json_lines(described: str) -> None:
    *found, summary = rows(
        rank(LAYER, LAYER, OTHER, "--machine", described, "--top", "2", "--ranker", "traffic",
                "--ranker", "traffic", "--threads", "2", "--json")
    )  # fmt: skip
    assert summary == {"summary": {"layers": 2, "rankers": {}}}
    assert [row["place"] for row in found] == [1, 2, 1, 2]
    context = fixed_context(parse_problem(LAYER, "nhwc"), 2)
    for row, choice in zip(found, choices(context, 2), strict=False):
        assert row["schedule"] == str(choice.schedule) and row["threads"] == 2
        assert row["cost"] == pytest.approx(choice.cost)
        assert row["predicted_seconds"] == pytest.approx(choice.seconds)
        assert row["seconds"] is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "expected SPEC or FILE, or --list"),
        ((LAYER, "--ranker", "luck"), "ranker 'luck': expected one of traffic"),
        ((LAYER, "--ranker", "learned"), "polysci learn"),
        ((LAYER, "--top", "0"), "positive"),
        ((LAYER, "--measure"), "--measure runs code on this machine"),
        (("mb1ic8zz",), "zz"),
    ],
)
def test_bad_input_is_one_clear_error(described: str, words: tuple[str, ...], told: str) -> None:
    ran = rank(*words, "--machine", described)
    assert ran.returncode == 2, ran.stderr
    assert told in ran.stderr and "Traceback" not in ran.stderr and ran.stdout == ""


def test_a_layer_that_no_ranker_can_order_fails(described: str) -> None:
    path = Path(described).with_name("sum.c")
    path.write_text(
        "float A[9][9], C[9];\n#pragma scop\nfor (int i = 0; i < 9; i++)\n"
        "  for (int j = 0; j < 9; j++)\n    C[i] += A[i][j];\n#pragma endscop\n"
    )
    ran = rank(str(path), LAYER, "--machine", described, "--ranker", "traffic")
    assert ran.returncode in (1, 2) and "Traceback" not in ran.stderr
    assert "sum.c" in ran.stdout + ran.stderr


@pytest.mark.exhaustive
def test_measured_choices_are_scored(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    words = ("--measure", "--top", "2", "--ranker", "traffic", "--ranker", "polydl")
    assert rows(rank(LAYER, *words, "--json", "-o", str(file))) == []
    *found, summary = map(json.loads, file.read_text().splitlines())
    timed = {row["schedule"]: row["seconds"] for row in found if "place" in row}
    assert len(timed) > 2 and all(seconds > 0 for seconds in timed.values())
    scores = {row["ranker"]: row["score"] for row in found if "score" in row}
    firsts = {row["ranker"]: row["seconds"] for row in found if row.get("place") == 1}
    for name in ("traffic", "polydl"):
        assert scores[name]["first"] == pytest.approx(min(timed.values()) / firsts[name])
        assert scores[name]["schedules"] == len(timed)
        assert summary["summary"]["rankers"][name]["layers"] == 1


@pytest.mark.exhaustive
def test_ctrl_c_keeps_what_was_measured() -> None:
    words = ("rank", LAYER, "vgg16", "--measure", "--json")
    options = ("--top", "6", "--ranker", "polydl", "--ranker", "traffic")
    with started(sys.executable, "-m", "polysci", *words, *options) as search:
        assert search.stderr is not None
        assert search.stderr.readline().startswith("[1/")  # the first layer is done
        time.sleep(1)
        search.send_signal(signal.SIGINT)
        out, err = search.communicate(timeout=60)
    assert search.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err
    found = [json.loads(line) for line in out.splitlines()]
    assert any("score" in row for row in found)
    assert found[-1]["summary"]["rankers"]["traffic"]["layers"] >= 1


@pytest.mark.exhaustive
def test_scores_count_what_a_ranker_chose_and_how_it_orders_the_rest() -> None:
    context = fixed_context(parse_problem(LAYER, "nhwc"))
    one, two = rank_choices(context, "traffic", 4), rank_choices(context, "polydl", 4)
    plans = distinct([one, two])
    assert plans[:2] == [one.choices[0].schedule, two.choices[0].schedule]
    assert len(plans) == len(set(plans)) > 4
    perfect = {plan: cost_of(context, plan, "traffic") for plan in plans}
    best, other = score_ranking(context, one, perfect), score_ranking(context, two, perfect)
    assert best is not None and other is not None
    assert best.first == best.few == 1.0 and best.tau > 0.99 and best.pairs == 1.0
    assert other.first <= other.few and other.tau < best.tau
    backwards = score_ranking(context, one, {plan: 1 / cost for plan, cost in perfect.items()})
    assert backwards is not None and backwards.first < 1.0 and backwards.tau < -0.99
    assert score_ranking(context, one, {plans[0]: 1.0}) is None  # nothing to compare with
    own = [choice.schedule for choice in one.choices]
    others = [plan for plan in plans if plan not in own]
    assert len(others) > 1 and score_ranking(context, one, dict.fromkeys(others, 1.0)) is None


def test_a_ranker_that_cannot_run_is_a_fault_not_an_exception() -> None:
    context = fixed_context(parse_problem(LAYER, "nhwc"))
    found = rank_choices(context, "learned", 3)
    assert found.choices == () and "nothing was learned" in str(found.fault)
    assert distinct([found, Ranking("x", fault=CheckError("y"))]) == []
