"""``polysci wisdom tuners --plot``: the best time so far of each tuner."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from polysci import cli
from polysci.cli.wisdom import best_so_far
from polysci.tune.tuners import TunerState
from polysci.tune.tuners.space import Decision, Space, TunerOptions
from polysci.tune.tuners.state import FOLDER, Outcome

SPACE = Space((Decision.of("part $1$", ("a", "b", "c", "d", "e")),), ())


def keep(folder: Path, program: str, tuner: str, seconds: list[float | None]) -> TunerState:
    """The state of a tuner that measured as many individuals."""
    folder.mkdir(exist_ok=True)
    state = TunerState(folder / f"{program}.jsonl", TunerOptions(tuner), SPACE)
    for at, second in enumerate(seconds):
        state.note((at,), Outcome(second, "" if second else "it crashed"))
    return state


def test_best_so_far(tmp_path: Path) -> None:
    state = keep(tmp_path, "one", "random", [None, 4e-6, 5e-6, None, 3e-6])
    assert best_so_far(state) == [(2, 4e-6), (3, 4e-6), (4, 4e-6), (5, 3e-6)]
    assert best_so_far(keep(tmp_path, "none", "random", [None])) == []


@pytest.mark.exhaustive
def test_a_line_for_each_tuner(
    fresh_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    keep(fresh_cache / FOLDER, "first", "random", [None, 4e-6, 5e-6, 3e-6])
    keep(fresh_cache / FOLDER, "second", "genetic", [2e-3, 1e-3])
    keep(fresh_cache / FOLDER, "nothing", "genetic", [None, None])
    (fresh_cache / FOLDER / "broken.jsonl").write_text("damage")
    texts = []
    for name in ("a.svg", "b.svg", "c.png"):
        assert cli.main(["wisdom", "tuners", "--plot", str(tmp_path / name)]) == 0
        told = capsys.readouterr()
        assert "first.jsonl" in told.out and "broken.jsonl: not read: " in told.err
        texts.append((tmp_path / name).read_bytes())
    assert texts[0] == texts[1] and texts[2].startswith(b"\x89PNG")
    drawn = texts[0].decode()
    assert "random, part $1$ (first): 3 us after 4 of at most 5" in drawn
    assert "genetic, part $1$ (second): 1 ms after 2 of at most 5" in drawn
    assert "nothing" not in drawn


def test_marks_of_the_axis_differ_where_times_hardly_do(fresh_cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    keep(fresh_cache / FOLDER, "first", "random", [8.98e-7, 8.961e-7, 8.949e-7])
    assert cli.main(["wisdom", "tuners", "--plot", str(tmp_path / "a.svg")]) == 0
    marks = re.findall(r"<!-- ([\d.]+ us) -->", (tmp_path / "a.svg").read_text())
    assert len(marks) > 2 and len({*marks}) == len(marks), marks


def test_errors(
    fresh_cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(name: str) -> str:
        assert cli.main(["wisdom", "tuners", "--plot", str(tmp_path / name)]) != 0
        return capsys.readouterr().err

    assert "expected a name that ends in .png or .svg" in fails("a.pdf")
    assert "there is no folder" in fails("missing/a.png")
    nothing = fails("a.png")
    assert f"no tuner has measured anything in {fresh_cache}" in nothing and "--tuner" in nothing
    keep(fresh_cache / FOLDER, "one", "random", [1e-3])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "--plot needs matplotlib, which is not installed: pip install" in fails("a.png")
