"""The bound that discards schedules: never above a measured time, and never the winner's."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polysci.cost import traffic
from polysci.cost.shortlist import as_family, rank_all
from polysci.cost.traffic import compute_bound, lower_bound
from polysci.errors import PolysciError
from polysci.measure.bench import Bench
from polysci.measure.trials import build_trials, time_trials
from polysci.ops.convolutions import Conv2d
from polysci.tune import LEVELS, Result, context_of, optimize
from polysci.tune.fit import sample_schedules
from polysci.tune.wisdom import Wisdom
from tests.support import samples

LAYERS = [
    Conv2d(N=1, C=64, H=14, W=14, K=64, R=3, S=3, pad=1),
    Conv2d(N=1, C=256, H=7, W=7, K=128, R=1, S=1),
    Conv2d(N=1, C=64, H=28, W=28, K=64, R=3, S=3, pad=1, groups=64),
    Conv2d(N=1, C=32, H=14, W=14, K=48, R=1, S=1, layout="nchw"),
]
TINY = Conv2d(N=1, C=16, H=5, W=5, K=16, R=1, S=1)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_no_schedule_runs_faster_than_its_bound(layer: Conv2d, calibrated_cache: Path) -> None:
    context = context_of(layer)
    plans = sample_schedules(context, 16)
    bounds = {plan: float(lower_bound(*as_family(context, plan))[0]) for plan in plans}
    with Bench(layer) as bench:
        for one, samples_s in time_trials(bench, build_trials(layer, plans), check=False):
            assert not isinstance(samples_s, PolysciError)
            assert bounds[one.schedule] <= min(samples_s.seconds), str(one.schedule)


def test_taps_in_the_padding_are_not_multiplied() -> None:
    """The FMAs of whole vectors are those of taps inside the image."""
    context = samples.fixed_context(LAYERS[0], 1)
    (family, *_) = samples.families(context)
    least = 1e-9 * LAYERS[0].multiplied_flops / context.peak
    assert LAYERS[0].multiplied_flops < LAYERS[0].flops
    assert compute_bound(context, family) == pytest.approx(least)


@pytest.mark.exhaustive
@settings(max_examples=15)
@given(samples.convolutions(most=24, layouts=("nhwc", "nchw")), st.integers(1, 3))
def test_the_model_never_predicts_less(problem: Conv2d, threads: int) -> None:
    """What bounds every schedule also bounds its prediction."""
    context = samples.fixed_context(problem, threads)
    for family in samples.families(context):
        assert (lower_bound(context, family) <= traffic(context, family).seconds * (1 + 1e-9)).all()


@pytest.mark.exhaustive
def test_a_full_search_discards_only_what_is_slower(
    fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"exhaustive": LEVELS["exhaustive"].__class__(None, 2, 1)}
    monkeypatch.setattr("polysci.tune.search.LEVELS", dict(LEVELS) | small)
    found = optimize(TINY, "exhaustive", wisdom=Wisdom())
    tried = {str(trial.schedule): trial for trial in found.trials}
    context = context_of(TINY)
    assert set(tried) == {str(c.schedule) for c in rank_all(context, tiles=2, blocks=1)}
    best = least_time(found)
    for trial in tried.values():
        if trial.seconds is None:
            assert trial.fault.startswith("not run: it takes")
            assert float(lower_bound(*as_family(context, trial.schedule))[0]) > best


@pytest.mark.exhaustive
def test_a_bound_of_zero_discards_nothing_and_a_huge_one_all_but_the_first(
    fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"exhaustive": LEVELS["exhaustive"].__class__(None, 2, 0)}
    monkeypatch.setattr("polysci.tune.search.LEVELS", dict(LEVELS) | small)
    count = len(list(rank_all(context_of(TINY), tiles=2, blocks=0)))
    for bound, run in ((0.0, count), (1e9, min(count, 4))):  # the first batch has no rival yet
        monkeypatch.setattr(
            "polysci.lower.direct.algorithm.lower_bound", lambda *_, bound=bound: [bound]
        )
        found = optimize(TINY, "exhaustive", wisdom=Wisdom(fresh_cache / f"{bound}.sqlite"))
        assert sum(trial.seconds is not None for trial in found.trials) == run


def least_time(found: Result) -> float:
    return min(trial.seconds for trial in found.trials if trial.seconds is not None)
