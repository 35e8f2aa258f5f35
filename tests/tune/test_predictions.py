"""Choices of the model that are kept for later processes."""

from pathlib import Path
from typing import NoReturn

import pytest

from polysci.ops import parse_problem
from polysci.runtime.build.folder import cache_dir
from polysci.tune import optimize, predictions, search
from polysci.tune.predictions import FOLDER, Prediction

LAYER = parse_problem("mb1ic8ih6oc8kh3ph1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where they are kept, empty yet; on a machine that is not measured for it."""
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        "polysci.tune.context.machine_of", lambda target, *_: search.assume_rates(target)
    )
    return cache_dir() / FOLDER


def test_a_second_search_takes_what_the_first_one_chose(folder: Path) -> None:
    first = optimize(LAYER, "estimate", quick=True)
    assert len([*folder.iterdir()]) == 1 and not (cache_dir() / "builds").exists()

    def refuse(*_: object, **__: object) -> NoReturn:
        pytest.fail("schedules are ranked")

    second = optimize(LAYER, "estimate", quick=True, find_candidates=refuse)
    assert (second.schedule, second.predicted) == (first.schedule, first.predicted)
    assert second.source == first.source
    with pytest.raises(pytest.fail.Exception, match="are ranked"):
        optimize(LAYER, "estimate", 2, quick=True, find_candidates=refuse)  # nothing is known


@pytest.mark.parametrize("text", ["", "[]", '{"schedule": 3}', '{"schedule": "?", "seconds": 1}'])
def test_damaged_entries_are_searched_for_again(folder: Path, text: str) -> None:
    first = optimize(LAYER, "estimate", quick=True)
    (entry,) = folder.iterdir()
    entry.write_text(text)
    assert optimize(LAYER, "estimate", quick=True).schedule == first.schedule
    assert predictions.load(entry.name) == Prediction(str(first.schedule), first.predicted)


def test_plain_searches_keep_none(folder: Path) -> None:
    optimize(LAYER, "estimate")
    assert not folder.exists()
