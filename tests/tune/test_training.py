"""The ranker that learns: features, weights as text, what pairs teach, what is held out."""

import json
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polysci.cost import RANKERS, Context, traffic
from polysci.cost.learned import features, score
from polysci.cost.shortlist import as_family, cost_of, rank_all
from polysci.cost.weights import LearnedScore, Weights, from_json
from polysci.errors import SpecError, UnsupportedError
from polysci.ops.convolutions import Conv2d
from polysci.ops.layer_lists import load
from polysci.space.schedule import Schedule
from polysci.tune.training import HeldOutScores, TrainingSample, cross_validate, judge_ranker, train
from tests.support import samples

LAYERS = {
    "one": (
        Conv2d(N=1, C=64, H=14, W=14, K=96, R=1, S=1),
        Conv2d(N=1, C=24, H=20, W=20, K=40, R=3, S=3, pad=1),
    ),
    "two": (Conv2d(N=1, C=128, H=12, W=12, K=64, R=1, S=1, layout="nchw"),),
    "three": (Conv2d(N=1, C=48, H=17, W=17, K=64, R=3, S=3, pad=1),),
}  # fmt: skip


def truth(context: Context, plan: Schedule) -> float:
    """Seconds of a machine that the model does not know: it hates wide tiles and likes packing."""
    wide = "x64" in plan.kernel or "x48" in plan.kernel
    predicted = traffic(*as_family(context, plan)).seconds[0]
    return float(predicted * (3.0 if wide else 1.0) * (0.8 if plan.pack else 1.0))


def make_samples(count: int = 30) -> list[TrainingSample]:
    found = []
    for group, layers in LAYERS.items():
        for number, layer in enumerate(layers):
            context = samples.fixed_context(layer)
            plans = tuple(samples.members(context, count, seed=number))
            seconds = np.array([truth(context, plan) for plan in plans])
            found.append(TrainingSample(group, context, plans, seconds))
    return found


@pytest.fixture(scope="module")
def training() -> list[TrainingSample]:
    return make_samples()


@pytest.fixture(scope="module")
def weights(training: list[TrainingSample]) -> Weights:
    return train(training)


@pytest.mark.exhaustive
@settings(max_examples=25)
@given(samples.convolutions(most=24, layouts=("nhwc", "nchw")), st.integers(1, 3), st.data())
def test_a_schedule_has_the_same_features_alone_and_in_its_family(
    problem: Conv2d, threads: int, data: st.DataObject
) -> None:
    context = samples.fixed_context(problem, threads)
    family = data.draw(st.sampled_from(samples.families(context)))
    names, table = features(context, family)
    assert table.shape == (len(family), len(names)) and len(set(names)) == len(names)
    assert np.isfinite(table).all()
    for index in data.draw(st.lists(st.integers(0, len(family) - 1), min_size=1, max_size=4)):
        schedule = family.schedule(index)
        if samples.fits(context, schedule):
            same, row = features(*as_family(context, schedule))
            assert same == names
            assert row[0] == pytest.approx(table[index], abs=1e-9), str(schedule)


@pytest.mark.exhaustive
def test_features_tell_apart_what_differs() -> None:
    context = samples.fixed_context(LAYERS["one"][0], 2)
    plans = samples.members(context, 60)
    rows = {features(*as_family(context, plan))[1].tobytes() for plan in plans}
    assert len(rows) > 50


@st.composite
def any_weights(draw: st.DrawFn) -> Weights:
    size = draw(st.integers(1, 4))
    number, positive = st.floats(-1e6, 1e6), st.floats(1e-6, 1e6)

    def row(value: st.SearchStrategy[float] = number) -> tuple[float, ...]:
        return tuple(draw(st.lists(value, min_size=size, max_size=size)))

    def one() -> LearnedScore:
        return LearnedScore(row(), row(positive), row(), row())

    kinds = draw(st.lists(st.sampled_from(["brgemm", "depthwise"]), min_size=1, unique=True))
    names = tuple(f"f{i}" for i in range(size))
    return Weights(names, tuple((kind, one()) for kind in kinds), 3, 50, draw(st.floats(0, 1)))


@given(any_weights())
def test_weights_come_back_from_their_text(weights: Weights) -> None:
    assert from_json(weights.to_json()) == weights


PLAIN = LearnedScore((1.0, 0.0), (2.0, 1.0), (1.0, 10.0), (3.0, 7.0))
GOOD = json.loads(Weights(("a", "b"), (("brgemm", PLAIN),)).to_json())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "pickle"}, "format: expected 'polysci-weights', got 'pickle'"),
        ({"version": 2}, "version: expected 1, got 2"),
        ({"code": "import os"}, "fields: expected exactly format, version, features"),
        ({"features": ["a", "a"]}, "features: expected 1 to 1000 different names"),
        ({"features": "ab"}, "features: expected 1 to 1000 different names"),
        ({"features": []}, "features: expected 1 to 1000"),
        ({"features": [["a"], "b"]}, "features: expected 1 to 1000"),
        ({"accuracy": 1.5}, "accuracy: expected a number in 0..1"),
        ({"layers": None}, "layers: expected a finite number"),
        ({"scores": {}}, "scores: expected an object with a score"),
        ({"scores": {"brgemm": {}}}, "scores.brgemm: expected exactly means, scales"),
    ],
)
def test_a_malformed_text_is_refused_by_field_and_rule(
    change: dict[str, object], message: str
) -> None:
    assert from_json(json.dumps(GOOD))
    with pytest.raises(SpecError, match=f"weights: {message}"):
        from_json(json.dumps(GOOD | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"means": [0.0]}, "means: expected a list of 2 numbers"),
        ({"means": [0.0, "x"]}, r"means\[1\]: expected a finite number, got 'x'"),
        ({"means": [float("nan"), 0]}, r"means\[0\]: expected a finite number, got nan"),
        ({"linear": [0.0, True]}, r"linear\[1\]: expected a finite number, got True"),
        ({"linear": [0.0, 1e300]}, r"linear\[1\]: expected a number in -1e\+12"),
        ({"scales": [1.0, 0.0]}, "scales: expected positive numbers, got 0.0"),
        ({"squares": []}, r"squares: expected a list of 2 numbers, one a feature, got \[\]"),
        ({"squares": 1}, "squares: expected a list of 2 numbers"),
        ({"code": 1}, "expected exactly means, scales, linear, squares, got"),
    ],
)
def test_a_malformed_score_is_refused_by_field_and_rule(
    change: dict[str, object], message: str
) -> None:
    scores = {"brgemm": GOOD["scores"]["brgemm"] | change}
    with pytest.raises(SpecError, match=rf"weights: scores\.brgemm.*{message}"):
        from_json(json.dumps(GOOD | {"scores": scores}))


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"means": NaN}', "null"])
def test_a_text_that_is_no_object_of_ours_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="weights: "):
        from_json(text)


def test_without_weights_the_ranker_says_what_to_do() -> None:
    context = samples.fixed_context(LAYERS["one"][0])
    with pytest.raises(SpecError, match=r"nothing was learned .*'polysci learn'"):
        next(rank_all(context, 1, ranker="learned"))


@pytest.mark.exhaustive
def test_weights_of_other_features_are_refused(weights: Weights) -> None:
    context = samples.fixed_context(LAYERS["one"][0])
    other = replace(weights, features=("new", *weights.features[1:]))
    with pytest.raises(SpecError, match=r"features: .*new, seconds in one of them only"):
        next(rank_all(replace(context, weights=other), 1, ranker="learned"))


def test_the_score_is_a_sum_whose_squares_are_cut_at_the_limit() -> None:
    table = np.array([[3.0, 2.0], [-9.0, 100.0]])  # z = 1, 2 and -5, 100
    assert score(PLAIN, table).tolist() == [1 + 20 + 3 + 28, -5 + 1000 + 27 + 63]


@pytest.mark.exhaustive
def test_microkernels_that_were_not_learned_are_left_to_the_model(weights: Weights) -> None:
    layer = Conv2d(N=1, C=32, H=9, W=9, K=32, R=3, S=3, pad=1, groups=32)
    context = replace(samples.fixed_context(layer), weights=weights)
    for family in samples.families(context):
        cost = RANKERS["learned"].cost(context, family)
        assert (cost == traffic(context, family).seconds).all()


@pytest.mark.exhaustive
def test_the_same_samples_give_the_same_weights(
    training: list[TrainingSample], weights: Weights
) -> None:
    again = train(training)
    assert again == weights and from_json(weights.to_json()) == weights
    assert (weights.layers, weights.schedules) == (4, 120)


@pytest.mark.exhaustive
def test_a_family_is_ranked_as_its_members_are(weights: Weights) -> None:
    context = replace(samples.fixed_context(LAYERS["one"][1]), weights=weights)
    family = samples.families(context)[3]
    together = RANKERS["learned"].cost(context, family)
    for index in range(0, len(family), max(1, len(family) // 7)):
        plan = family.schedule(index)
        if samples.fits(context, plan):
            assert cost_of(context, plan, "learned") == pytest.approx(together[index])


@pytest.mark.exhaustive
def test_networks_held_out_are_ordered_better_than_by_the_model(
    training: list[TrainingSample],
) -> None:
    told: list[str] = []
    held = cross_validate(training, told.append)
    assert [one.sample for one in held] == training
    assert told == [f"[{i}/3] learning without {group}" for i, group in enumerate(LAYERS, 1)]
    found = judge_ranker(held)
    learned, model = found.accuracy
    assert learned > model + 0.05
    assert found.top[0] >= found.top[1] and 0 < found.worst[0] <= found.top[0] <= 1
    assert (found.layers, found.schedules) == (4, 120)


@pytest.mark.exhaustive
def test_a_network_is_not_learned_from_while_it_is_held_out(training: list[TrainingSample]) -> None:
    """Nonsense in one group changes what the others are told, not what it is told itself."""
    shuffled = np.random.default_rng(1).permutation(training[0].seconds)
    spoilt = [replace(training[0], seconds=shuffled), *training[1:]]
    before, after = cross_validate(training), cross_validate(spoilt)
    assert training[0].group == training[1].group
    assert (before[0].costs == after[0].costs).all() and (before[1].costs == after[1].costs).all()
    assert (before[2].costs != after[2].costs).any()


@pytest.mark.exhaustive
def test_the_search_chooses_by_what_was_learned(weights: Weights) -> None:
    context = samples.fixed_context(Conv2d(N=1, C=96, H=13, W=13, K=128, R=1, S=1))
    context = replace(context, weights=weights)
    best = {name: next(rank_all(context, 1, ranker=name)) for name in ("learned", "traffic")}
    seconds = {name: truth(context, choice.schedule) for name, choice in best.items()}
    assert seconds["learned"] < seconds["traffic"]


@pytest.mark.exhaustive
def test_what_cannot_be_learned_from_is_refused(training: list[TrainingSample]) -> None:
    one = training[0]
    equal = [replace(one, seconds=np.ones(len(one.schedules)))] * 3
    for few in ([], training[:2], equal):
        with pytest.raises(
            SpecError, match=f"training samples: expected 3 or more .* got {len(few)}"
        ):
            train(few)
    with pytest.raises(SpecError, match="two groups or more"):
        cross_validate(training[:2])
    with pytest.raises(SpecError, match="a time for each of two or more"):
        replace(one, seconds=one.seconds[1:])
    with pytest.raises(SpecError, match="expected positive numbers"):
        replace(one, seconds=-one.seconds)


def test_judgement_of_perfect_and_of_inverted_costs(training: list[TrainingSample]) -> None:
    one = training[0]
    found = judge_ranker([HeldOutScores(one, one.seconds, -one.seconds)])
    assert found.accuracy == (1.0, 0.0)
    assert found.top == pytest.approx((1.0, one.seconds.min() / one.seconds.max()))


@pytest.mark.exhaustive
def test_without_scikit_learn_the_extra_is_named(
    training: list[TrainingSample], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'polysci\[learn\]'"):
        train(training)


RANKING = """
import sys
from dataclasses import replace
from polysci.cost.shortlist import rank_all
from polysci.ops.convolutions import Conv2d
from polysci.cost.weights import from_json
from tests.support import samples
sys.modules["sklearn"] = None
context = samples.fixed_context(Conv2d(N=1, C=32, H=14, W=14, K=32, R=1, S=1))
context = replace(context, weights=from_json(sys.stdin.read()))
print(next(rank_all(context, 1, ranker="learned")).schedule)
"""


@pytest.mark.exhaustive
def test_ranking_needs_no_scikit_learn(weights: Weights) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", RANKING], input=weights.to_json(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert " > brgemm_avx512" in ran.stdout


@pytest.mark.perf
def test_fifty_thousand_schedules_a_second(weights: Weights) -> None:
    context = replace(samples.fixed_context(load("resnet50")[2]), weights=weights)
    families, best = samples.families(context, tiles=14, blocks=3), 0.0
    for _ in range(5):
        start = time.perf_counter()
        count = sum(len(RANKERS["learned"].cost(context, family)) for family in families)
        best = max(best, count / (time.perf_counter() - start))
    assert best >= 50_000, f"{best:.0f} schedules a second"
