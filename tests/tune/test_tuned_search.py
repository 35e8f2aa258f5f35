"""A tuner of one problem: crashes and hangs, early stops, seeds from other sizes, records."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from polysci import tune
from polysci.errors import SpecError
from polysci.lower.direct.algorithm import Direct
from polysci.measure.bench import Bench
from polysci.ops.convolutions import Conv2d
from polysci.runtime.measurement import host_of
from polysci.runtime.source import Source
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.tune import TunerOptions
from polysci.tune.tuners import TunerState
from polysci.tune.wisdom import Wisdom
from tests.support import naive

TARGET = detect("portable")
TINY = Conv2d(N=1, C=5, H=6, W=6, K=8, R=3, S=3, pad=1)
FEW = TunerOptions("genetic", 5, 2, elites=1)
optimize = partial(tune.optimize, target=TARGET, tuner=FEW)


@pytest.fixture
def wisdom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wisdom:
    monkeypatch.setattr("polysci.tune.tuned_trials.state_path", lambda _: tmp_path / "state.jsonl")
    return Wisdom(tmp_path / "wisdom.sqlite")


@pytest.mark.exhaustive
def test_it_measures_records_and_goes_on(wisdom: Wisdom, tmp_path: Path) -> None:
    first = optimize(TINY, wisdom=wisdom)
    state = TunerState.load(tmp_path / "state.jsonl", FEW)
    assert state is not None and 5 <= len(state.outcomes) <= FEW.budget
    assert {str(trial.schedule) for trial in first.trials} >= {
        state.space.decisions[0].options[number] for (number,) in state.outcomes
    }
    assert first.measurement is not None and first.level == "patient"
    (record,) = [r for r in wisdom.list() if r.level != "trial"]
    assert (record.schedule, record.level) == (str(first.schedule), "patient")
    text, stages = state.path.read_text(), list[str]()
    again = optimize(TINY, wisdom=wisdom, progress=lambda step: stages.append(step.stage))
    assert "tuning" not in stages and state.path.read_text() == text  # all of it was known
    assert again.measurement is not None and again.measurement.protocol != "recorded"


@pytest.mark.exhaustive
def test_crashes_and_hangs_fall_out(wisdom: Wisdom, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = iter(["segfault", "loop", "wrong"])
    broken = dict[Schedule, str]()

    def emit(problem: Any, schedule: Schedule, *words: Any) -> Source:
        source = tune.emit(problem, schedule, *words)
        if len(broken) < 3:
            broken.setdefault(schedule, next(faults))
        fault = broken.get(schedule)
        return (
            naive.with_text(source, naive.text(problem, source.symbol, fault)) if fault else source
        )

    for module in ("measure.trials", "tune.search", "tune.trials"):
        monkeypatch.setattr(f"polysci.{module}.emit", emit)
    monkeypatch.setattr("polysci.tune.runner.Bench", partial(Bench, timeout=2))
    result = optimize(TINY, wisdom=wisdom)
    trials = {trial.schedule: trial for trial in result.trials}
    assert all(trials[schedule].seconds is None for schedule in broken)
    for schedule, words in zip(broken, ("SIGSEGV", "longer than 2 s", "wrong"), strict=True):
        assert words in trials[schedule].fault
    assert result.schedule not in broken


@pytest.mark.exhaustive
def test_it_ends_once_nothing_left_can_win(
    wisdom: Wisdom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Direct, "lower_bound", lambda *_: 1.0)  # seconds
    optimize(TINY, wisdom=wisdom)
    state = TunerState.load(tmp_path / "state.jsonl", FEW)
    assert state is not None and len(state.outcomes) <= 4 < len(state.space.decisions[0].options)


@pytest.mark.exhaustive
def test_records_of_other_sizes_are_seeds(wisdom: Wisdom, tmp_path: Path) -> None:
    kernel = "brgemm_portable_f32_2x4"
    for size, schedule in ((12, f"k:4 p q:2 > {kernel}"), (40, f"p k:4 q:2 > {kernel}")):
        wisdom.record(
            TINY.with_(H=size, W=size).key, 1, TARGET.isa.features, "measure", schedule, 1e-6,
            host=host_of(TARGET),
        )  # fmt: skip
    optimize(TINY, wisdom=wisdom)
    state = TunerState.load(tmp_path / "state.jsonl", FEW)
    assert state is not None
    (decision,), seeds = state.space.decisions, state.space.seeds
    near, far = (decision.nearest_to(text) for text in (f"k:4 p q:2 > {kernel}",
                                                        f"p k:4 q:2 > {kernel}"))  # fmt: skip
    assert seeds[0] == (0,) and seeds.index((near,)) < seeds.index((far,))


@pytest.mark.exhaustive
def test_reproducible_sums_keep_their_order(wisdom: Wisdom) -> None:
    problem = Conv2d(N=1, C=256, H=3, W=3, K=8, R=1, S=1)
    plain: Callable[..., tune.Result] = partial(tune.optimize, problem, "estimate", target=TARGET)
    kept = plain(reproducible=True, wisdom=wisdom)
    tuned = optimize(problem, wisdom=wisdom, reproducible=True, time_limit=1.0)
    depth = [loop.step for loop in kept.schedule.loops if loop.dim == "c"]
    assert [loop.step for loop in tuned.schedule.loops if loop.dim == "c"] == depth


@pytest.mark.parametrize("level", ["estimate", "wisdom-only"])
def test_a_level_that_measures_nothing(level: str, wisdom: Wisdom) -> None:
    with pytest.raises(SpecError, match=f"level '{level}': measures nothing, and a tuner measures"):
        optimize(TINY, level, wisdom=wisdom)
