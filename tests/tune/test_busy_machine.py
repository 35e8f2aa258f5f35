"""Searches beside other work pick what searches on a quiet machine pick, or as fast a schedule."""

from pathlib import Path

import pytest

from polysci.measure.bench import Bench
from polysci.ops.layer_lists import load
from polysci.runtime.build import cache
from polysci.target.host import detect
from polysci.tune import SYMBOL, optimize
from polysci.tune.wisdom import Wisdom
from tests.support.load import busy

pytestmark = [pytest.mark.perf, pytest.mark.disturbance]
LAYERS, REPEATS, LEAST, SLOWER = 10, 2, 19, 1.05


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("cpus", [(0,), (0, 1)], ids=["one core", "both cores"])
def test_picks_beside_other_work_are_as_fast(
    cpus: tuple[int, ...], threads: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if detect().cores < 2:
        pytest.skip("one core")
    ratios = []
    for number, layer in enumerate({p.key: p for p in load("resnet50")}.values()):
        if number == LAYERS:
            break
        quiet = optimize(layer, "measure", threads, wisdom=Wisdom(tmp_path / f"{number}.sqlite"))
        for repeat in range(REPEATS):
            with busy(*cpus):
                wisdom = Wisdom(tmp_path / f"{number}.{repeat}.sqlite")
                pick = optimize(layer, "measure", threads, wisdom=wisdom)
            with Bench(layer, threads) as bench:
                objects = [(cache.build(its.source.file), SYMBOL) for its in (pick, quiet)]
                picked, best = bench.time(objects, samples=11)
            ratios.append(min(picked.seconds) / min(best.seconds))
    good = sum(ratio <= SLOWER for ratio in ratios)
    with capsys.disabled():
        print(f"\n{threads} threads, {len(cpus)} busy: {good} of {len(ratios)} picks within 5 %")
    assert good >= LEAST, ratios
