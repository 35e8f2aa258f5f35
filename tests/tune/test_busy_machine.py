"""Searches beside other work pick what searches on a quiet machine pick, or as fast a schedule."""

from collections.abc import Callable
from functools import cache as cache_of_calls
from pathlib import Path

import pytest

from polysci.measure.bench import Bench
from polysci.ops.layer_lists import load
from polysci.ops.problem import Problem
from polysci.runtime.build import cache
from polysci.target.host import detect
from polysci.tune import SYMBOL, Result, optimize
from polysci.tune.probes import build_reference
from polysci.tune.wisdom import Wisdom
from tests.support.load import busy

pytestmark = [pytest.mark.perf, pytest.mark.usefixtures("users_policy")]
LAYERS, REPEATS, LEAST, SLOWER = 10, 2, 19, 1.05


@pytest.fixture(scope="module")
def pick_quiet(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Problem, int], Result]:
    """``pick_quiet(layer, threads)``: the pick where nothing else runs, searched for once."""
    wisdom = Wisdom(tmp_path_factory.mktemp("quiet") / "wisdom.sqlite")
    return cache_of_calls(lambda layer, threads: optimize(layer, "measure", threads, wisdom=wisdom))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("cpus", [(0,), (0, 1)], ids=["one core", "both cores"])
def test_picks_beside_other_work_are_as_fast(
    cpus: tuple[int, ...], threads: int, pick_quiet: Callable[[Problem, int], Result],
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if detect().cores < 2:
        pytest.skip("one core")
    ratios = list[float]()
    for layer in list({problem.key: problem for problem in load("resnet50")}.values())[:LAYERS]:
        quiet = pick_quiet(layer, threads)
        for _ in range(REPEATS):
            with busy(*cpus):
                wisdom = Wisdom(tmp_path / f"{len(ratios)}.sqlite")
                pick = optimize(layer, "measure", threads, wisdom=wisdom)
            with Bench(layer, threads) as bench:
                bench.watch(*build_reference(detect(), threads))
                objects = [(cache.build(its.source.file), SYMBOL) for its in (pick, quiet)]
                picked, best = bench.time(objects, samples=15)
            ratios.append(min(picked.seconds) / min(best.seconds))
    good = sum(ratio <= SLOWER for ratio in ratios)
    with capsys.disabled():
        print(f"\n{threads} threads, {len(cpus)} busy: {good} of {len(ratios)} picks within 5 %, "
              f"the worst {max(ratios):.2f}")  # fmt: skip
    assert good >= LEAST, " ".join(f"{ratio:.2f}" for ratio in ratios)
