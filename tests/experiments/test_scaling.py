"""The experiment on described machines, as people start it, on a network of two small layers."""

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from polysci import tune
from polysci.cost.shortlist import choices
from polysci.ops import parse_problem
from polysci.target.machine import assume_rates
from polysci.target.machine_file import MachineFile
from tests.support.samples import FIXED
from tests.support.scripts import STRICT

SCRIPT = Path(__file__).parents[2] / "experiments/scaling.py"
LAYERS = ('mb1ic32ih12oc64kh1n"first"', 'mb1ic16ih10oc32kh3ph1n"second"')
EIGHT = MachineFile(replace(FIXED, cores=8), assume_rates(replace(FIXED, cores=8)))


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *STRICT, str(SCRIPT), "--quick", "--output", str(folder)]
    return subprocess.run([*command, *words], capture_output=True, text=True, timeout=120)


@pytest.fixture
def machine(tmp_path: Path) -> str:
    path = tmp_path / "eight.toml"
    path.write_text(EIGHT.to_toml())
    return str(path)


@pytest.fixture
def network(tmp_path: Path) -> str:
    path = tmp_path / "small.txt"
    path.write_text("\n".join(LAYERS) + "\n")
    return str(path)


def test_rows_are_the_models_choices(tmp_path: Path, machine: str, network: str) -> None:
    ran = run(tmp_path, "--machine", machine, "--network", network)
    assert ran.returncode == 0, ran.stderr
    with (tmp_path / "scaling-quick.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    place = [(row["batch"], row["layer"], int(row["threads"])) for row in rows]
    assert place == [(b, n, t) for b in ("1", "threads") for n in ("first", "second")
                     for t in (1, 2, 8)]  # fmt: skip
    for row in rows:
        threads = int(row["threads"])
        layer = next(words for words in LAYERS if row["layer"] in words)
        problem = parse_problem(layer, "nhwc").with_(N=1 if row["batch"] == "1" else threads)
        context = tune.context_of(problem, threads, EIGHT.target, machine=EIGHT.machine)
        choice = choices(context, 1)[0]
        assert row["schedule"] == str(choice.schedule)
        assert float(row["seconds"]) == pytest.approx(choice.seconds, rel=1e-4)
        assert (row["shared"] == "nothing") == (not choice.schedule.parallel)
        names = list(row)
        parts = names[names.index("efficiency") + 1 : names.index("schedule")]
        assert {"compute", "imbalance", "starting_threads"} <= set(parts)
        assert sum(float(row[part]) for part in parts) == pytest.approx(choice.seconds, rel=1e-3)
    assert all(float(row["efficiency"]) == 1 for row in rows if row["threads"] == "1")
    assert "efficiency" in ran.stdout


@pytest.mark.exhaustive
def test_a_bad_machine_is_one_line(tmp_path: Path, network: str) -> None:
    ran = run(tmp_path, "--machine", str(tmp_path / "no.toml"), "--network", network)
    assert ran.returncode == 2 and "no.toml: cannot be read" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.exhaustive
def test_the_best_that_shares_as_before_is_no_better_than_the_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import scaling

    problem = parse_problem(LAYERS[0], "nhwc").with_(N=8)
    context = tune.context_of(problem, 8, EIGHT.target, machine=EIGHT.machine)
    chosen = choices(context, 1)[0]
    for shared in ("images", "pixels", "channels", "pixels x channels"):
        plan = scaling.best_sharing(context, shared)
        assert plan is not None and scaling.shared_by(plan) == shared
        seconds, parts = scaling.parts_of(context, plan)
        assert seconds >= chosen.seconds * (1 - 1e-9)
        assert sum(parts.values()) == pytest.approx(seconds, rel=0.05)
    assert scaling.best_sharing(context, "nothing") is None
