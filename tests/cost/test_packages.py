"""Rankers from installed packages: rows of the table, and what is wrong with some."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from polysci.cost import RANKERS, Context, Ranker
from polysci.cost.rankers import add_rankers
from polysci.errors import SpecError
from polysci.ops.convolutions import Conv2d
from polysci.space.enumerate import Family
from tests.support import samples
from tests.support.installed import install, run_with

MODULE = """
from polysci.cost import Context, Family, Ranker, traffic

def seconds(context: Context, family: Family):
    return -traffic(context, family).seconds

SLOWEST = Ranker("the slowest first", seconds)
WRONG = Ranker("a fault", lambda context, family: 1 / 0)
"""
POINTS = """
[polysci.rankers]
slowest = my_rankers:SLOWEST
wrong = my_rankers:WRONG
traffic = my_rankers:SLOWEST
absent = my_rankers:ABSENT
text = my_rankers:__name__
"""
LAYER = "mb1ic8ih5oc14oh5kh3ph1"
MACHINE = '[target]\nisa = "portable"\ncores = 1\nl1 = 32768\nl2 = 262144\nl3 = 2097152\n'
LEFT_OUT = {
    "absent": "cannot be loaded: AttributeError: module 'my_rankers' has no attribute 'ABSENT'",
    "text": "expected a Ranker, got 'my_rankers'",
    "traffic": "another ranker is called 'traffic'",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site")
    install(path, "my_rankers", POINTS, {"my_rankers.py": MODULE})
    (path / "machine.toml").write_text(MACHINE)
    return path


@pytest.mark.exhaustive
def test_an_installed_ranker_is_listed_and_what_does_not_fit_is_named(site: Path) -> None:
    done = run_with(site, "-m", "polysci", "rank", "--list", "--wide")
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == [*RANKERS, "slowest", "wrong"]
    assert "the slowest first" in done.stdout
    head = "package my_rankers 1.0, entry point '{}' of polysci.rankers: left out: {}"
    assert done.stderr.splitlines() == [head.format(*item) for item in LEFT_OUT.items()]


@pytest.mark.exhaustive
def test_an_installed_ranker_chooses(site: Path) -> None:
    words = ["-m", "polysci", "rank", LAYER, "--machine", "machine.toml", "--top", "1"]
    done = run_with(site, *words, "--ranker", "slowest", "--ranker", "traffic", "--json")
    assert done.returncode == 0, done.stderr
    assert '"ranker": "slowest"' in done.stdout and '"ranker": "traffic"' in done.stdout


@pytest.mark.exhaustive
def test_a_fault_of_an_installed_ranker_names_its_package(site: Path) -> None:
    words = ["-m", "polysci", "rank", LAYER, "--machine", "machine.toml", "--ranker", "wrong"]
    done = run_with(site, *words)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "polysci: error: package my_rankers 1.0, entry point 'wrong' of polysci.rankers: "
        "ZeroDivisionError: division by zero"
    )


@pytest.mark.parametrize(
    ("cost", "reason"),
    [
        (lambda context, family: np.zeros(len(family) + 1), r"of shape \(\d+,\) with 0 NaNs"),
        (lambda context, family: np.full(len(family), np.nan), r"with [1-9]\d* NaNs"),
        (lambda context, family: "cheap", "ValueError: could not convert string to float: 'cheap'"),
    ],
)
def test_costs_are_a_number_for_each_schedule(
    cost: object, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "mine", "[polysci.rankers]\nmine = mine:RANKER\n", {})
    monkeypatch.syspath_prepend(tmp_path)
    ranker = Ranker("mine", cost)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(RANKER=ranker))
    context: Context = samples.fixed_context(Conv2d(N=1, C=8, H=5, W=5, K=16, R=1, S=1))
    family: Family = samples.families(context)[0]
    with pytest.raises(SpecError) as caught:
        add_rankers({})["mine"].cost(context, family)
    assert re.match(f"package mine 1.0, entry point 'mine' of .*: .*{reason}", str(caught.value))
