"""The proof that bounds of fusion groups prune no fastest division: what it finds, and one run."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from polysci.cost.fusion import FusionCosts
from polysci.loop_ir.expressions import Load
from polysci.program.passes.row import FusionGroup
from polysci.program.stages import LoopStage, RowFusion
from tests.support.scripts import run_script

FOLDER = Path(__file__).parents[2] / "experiments"
A, B = (LoopStage(name, name, Load(name, ())) for name in "ab")
INSIDE = ("a",)


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = spec_from_file_location("fusion_bounds_of_tests", FOLDER / "fusion_bounds.py")
    assert spec and spec.loader
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setitem(sys.modules, spec.name, module := module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


def proof(
    bounds: ModuleType, apart: tuple[float, float], together: tuple[float, float], bound: float,
    *, pruned: bool = True,
) -> Any:  # fmt: skip
    """Two loops, apart and together, each with the seconds of two contexts."""
    runs = {INSIDE: FusionGroup(("a", "b"), bound, 1.0, 1.0, pruned=pruned)}
    subject = bounds.Subject(None, None, {}, {}, runs, runs, frozenset())

    def trial(stages: tuple[Any, ...], seconds: tuple[float, float]) -> Any:
        contexts = (
            bounds.Context(list, list, None, taken, [taken / len(stages)] * len(stages))
            for taken in seconds
        )
        return bounds.Trial(bounds.division_of(stages), stages, None, tuple(contexts))

    return bounds.Proof(subject, [trial((A, B), apart), trial((RowFusion((A, B), 1),), together)])


@pytest.mark.parametrize(
    ("together", "pruned", "wins"),
    [((7.0, 7.0), True, True), ((7.0, 7.0), False, False), ((9.9, 10.4), True, False),
     ((11.0, 11.0), True, False)],
    ids=["faster", "not pruned", "noise", "slower"],
)  # fmt: skip
def test_a_pruned_winner_is_found(
    bounds: ModuleType, together: tuple[float, float], pruned: bool, wins: bool
) -> None:
    """What a program differs from itself by is no gain."""
    seen = proof(bounds, (10.0, 10.2), together, 6.0, pruned=pruned)
    assert seen.wins_pruned() is wins
    assert seen.ratios() == [6.0 / min(together)] and seen.apart(INSIDE) == 10.0
    row = seen.summary("two", "host")
    assert (row["divisions"], row["pruned wins"]) == (2, wins)


def test_a_bound_above_what_was_measured_is_found(bounds: ModuleType) -> None:
    assert proof(bounds, (10.0, 10.0), (8.0, 8.0), 8.1).ratios()[0] > 1


def test_rows_of_other_networks_stay(bounds: ModuleType, tmp_path: Path) -> None:
    """A run may take part of the networks; those it takes again are replaced."""
    path = tmp_path / "rows.csv"
    for name, seconds in (("a", 1), ("b", 2), ("a", 3)):
        bounds.add_rows(path, [{"network": name, "place": "host", "us": seconds}])
    assert path.read_text() == "network,place,us\nb,host,2\na,host,3\n"


@pytest.mark.exhaustive
def test_a_fault_of_the_bound_is_found(bounds: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound of a second prunes all, and is above what was measured."""
    monkeypatch.setattr(FusionCosts, "bound", lambda *_: 1.0)
    subject = bounds.Subject.of("reductions", "host")
    assert {*map(subject.verdict, subject.runs)} == {bounds.PRUNED}
    seen = bounds.prove(subject, 2)
    assert len(seen.trials) == 3 and max(seen.ratios()) > 1


@pytest.mark.exhaustive
def test_a_network_is_proved(tmp_path: Path) -> None:
    ran = run_script(
        FOLDER / "fusion_bounds.py", "--output", tmp_path, "--place", "host", "--rounds", "3",
        "mlp relu",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "gemm t0 + relu t1 > gemm t2" in ran.stdout
    assert (tmp_path / "fusion-bounds-runs.csv").read_text().count("\n") == 2
    ran = run_script(FOLDER / "fusion_bounds.py", "--output", tmp_path, "mpl")
    assert ran.returncode == 2 and "network 'mpl': no such network" in ran.stderr
