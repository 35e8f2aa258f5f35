"""The counts of ``python -m tests.support.house``."""

from pathlib import Path

import pytest

import polysci
from tests.support import house


@pytest.mark.exhaustive
def test_importers_are_counted() -> None:
    users = house.importers()
    assert "polysci.tune.search" in users["polysci.tune.tuned_trials"]
    assert "polysci.__init__" in users["polysci.api"]  # by a name, on first use
    assert "polysci.ops.normal_form" in house.with_one_importer()
    assert "polysci.errors" not in house.with_one_importer()


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ('"""Prints ``#include``."""\nx = 1\n', False),
        ('x = "#include <stdint.h>"\n', True),
        ('x = f"for (int64_t i = 0; i < {n}; ++i)"\n', True),
        ('x = f"__attribute__((target({n})))"\n', True),
        ("from polysci.printers import ctree as c\n", True),
        ('raise ValueError("expected a float, got {x}")\n', False),
        ('raise ValueError("a region begins with #pragma scop")\n', False),
    ],
)
def test_text_of_c_is_told_from_other_text(tmp_path: Path, text: str, printed: bool) -> None:
    path = tmp_path / "module.py"
    path.write_text(text, encoding="utf-8")
    assert house.prints_c(path) is printed


def test_files_of_c_stand_in_the_folders_for_them(tmp_path: Path) -> None:
    assert not house.misplaced_c()
    for folder in ("training/templates", "printers/templates"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "step.h").touch()
    assert house.misplaced_c(tmp_path) == ["training/templates/step.h"]


def test_passages_between_rooms_are_recorded() -> None:
    trace = house.trace(lambda: polysci.parse_problem("mb1ic16ih14oc16kh3ph1").with_batch(2))
    assert ("a user", "ops") in trace.passages
    assert trace.returns <= trace.passages
    assert not any(before == room for before, room in trace.passages)
