"""Choices of the model that are kept for later processes."""

import os
import time
from pathlib import Path
from typing import NoReturn

import pytest

from polysci.ops import parse_problem
from polysci.runtime.build import eviction
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


@pytest.mark.sampled
@pytest.mark.parametrize("text", ["", "[]", '{"schedule": 3}', '{"schedule": "?", "seconds": 1}'])
def test_damaged_entries_are_searched_for_again(folder: Path, text: str) -> None:
    first = optimize(LAYER, "estimate", quick=True)
    (entry,) = folder.iterdir()
    entry.write_text(text)
    assert optimize(LAYER, "estimate", quick=True).schedule == first.schedule
    assert predictions.load(entry.name) == Prediction(str(first.schedule), first.predicted)


@pytest.mark.exhaustive
def test_plain_searches_keep_none(folder: Path) -> None:
    optimize(LAYER, "estimate")
    assert not folder.exists()


def test_the_least_recently_used_are_evicted_with_the_builds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {key: Prediction(f"k:{at}", float(at)) for at, key in enumerate("abc")}
    for hours, (key, prediction) in zip((9, 8, 7), made.items(), strict=True):
        predictions.keep(key, prediction)
        then = time.time() - 3600 * hours
        os.utime(folder / key, (then, then))
    size = eviction.usage(cache_dir()).size
    assert predictions.load("a") == made["a"]  # used now
    assert eviction.evict(cache_dir(), limit=size - 1) == 1
    assert [predictions.load(key) for key in made] == [made["a"], None, made["c"]]
    looks = list[Path]()
    monkeypatch.setattr(eviction, "evict", looks.append)
    for at in range(64):
        predictions.keep(f"d{at}", made["a"])
    assert looks == [cache_dir()]


def test_clearing_the_cache_takes_them(folder: Path) -> None:
    predictions.keep("a", Prediction("k", 1.0))
    assert eviction.clear(cache_dir()) == 1 and not [*folder.iterdir()]
