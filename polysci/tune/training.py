"""Train the learned ranker on recorded pairs of schedules; validate it on held-out networks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysci.cost import Context, traffic
from polysci.cost.batch import batch
from polysci.cost.learned import Features, features, score
from polysci.cost.metrics import NOISE, best_of_top, pair_accuracy
from polysci.cost.weights import LIMIT, LearnedScore, Weights
from polysci.errors import PolysciError, SpecError, UnsupportedError, WisdomError
from polysci.ops import layer_lists, parse_key
from polysci.ops.problem import Problem
from polysci.runtime.measurement import host_of
from polysci.space import schedule
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule
from polysci.target.microkernels import find
from polysci.target.target import Target
from polysci.tune.context import context_of
from polysci.tune.wisdom import Record, Wisdom

LAYERS = 3  # least number of layers on record, and of those with one family of microkernels
SCHEDULES = 50  # least number of schedules on record
PAIRS = 400  # of one layer, drawn from all pairs that differ by more than the noise
SEED = 0
STRENGTH = 0.1  # inverse of the penalty on squared weights
SQUARES = 0.3  # scale of squared features: the smaller, the more their weights are penalised
Progress = Callable[[str], None]
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """Measured schedules of one layer; ``group`` is its network, held out as a whole."""

    group: str
    context: Context
    schedules: tuple[Schedule, ...]
    seconds: Numbers

    def __post_init__(self) -> None:
        if len(self.schedules) != len(self.seconds) or len(self.schedules) < 2:
            raise SpecError(
                f"training sample of {self.group!r}: expected a time for each of two or more "
                f"schedules, got {len(self.schedules)} schedules and {len(self.seconds)} times"
            )
        if not (np.isfinite(self.seconds) & (self.seconds > 0)).all():
            raise SpecError(
                f"training sample of {self.group!r}: seconds: expected positive numbers"
            )


@dataclass(frozen=True, slots=True)
class HeldOutScores:
    """A sample's costs by weights trained on the other groups, and by the traffic model."""

    sample: TrainingSample
    costs: Numbers
    traffic: Numbers

    @property
    def accuracy(self) -> tuple[float, float]:
        """Share of pairs in the right order: learned, traffic."""
        seconds = self.sample.seconds
        return pair_accuracy(self.costs, seconds), pair_accuracy(self.traffic, seconds)

    @property
    def top(self) -> tuple[float, float]:
        """Best time over that of the first choice: learned, traffic."""
        return best_of_top(self.costs, self.sample.seconds), best_of_top(
            self.traffic, self.sample.seconds
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """Several held-out layers together; pairs are (learned, traffic).

    ``accuracy`` is the mean over the layers. ``top`` is the geometric mean of the first choice's
    speed over the best measured speed, ``worst`` the minimum of that.
    """

    layers: int
    schedules: int
    accuracy: tuple[float, float]
    top: tuple[float, float]
    worst: tuple[float, float]


def judge_ranker(scores: Sequence[HeldOutScores]) -> Judgement:
    """The figures of some held-out layers together."""
    accuracy, top = (
        np.array([getattr(layer, name) for layer in scores]) for name in ("accuracy", "top")
    )
    return Judgement(
        len(scores),
        sum(len(layer.sample.schedules) for layer in scores),
        _both(accuracy.mean(axis=0)),
        _both(np.exp(np.log(top).mean(axis=0))),
        _both(top.min(axis=0)),
    )


def _both(values: Numbers) -> tuple[float, float]:
    return float(values[0]), float(values[1])


def train(training: Sequence[TrainingSample]) -> Weights:
    """Weights for the ranker ``learned``; the same samples give the same weights.

    Families of microkernels with fewer than LAYERS samples are left to ``traffic``. Raises
    SpecError without enough samples, UnsupportedError without scikit-learn.
    """
    weights = _weights([_prepare(sample) for sample in training])
    if not weights.scores:
        raise SpecError(
            f"training samples: expected {LAYERS} or more of one family of microkernels, with "
            f"times that differ by more than {NOISE:.0%}; got {len(training)}"
        )
    return weights


def cross_validate(
    training: Sequence[TrainingSample], progress: Progress | None = None
) -> list[HeldOutScores]:
    """Score every sample by weights trained on all other groups, in the order of ``training``.

    Calls ``progress(text)`` before every group. Raises SpecError where there is only one group,
    UnsupportedError without scikit-learn.
    """
    groups = list(dict.fromkeys(sample.group for sample in training))
    if len(groups) < 2:
        raise SpecError(
            f"training samples: expected two groups or more, to hold one out; got {groups}"
        )
    prepared, learned = [_prepare(sample) for sample in training], dict[str, Weights]()
    for number, group in enumerate(groups, 1):
        if progress:
            progress(f"[{number}/{len(groups)}] learning without {group}")
        learned[group] = _weights([sample for sample in prepared if sample.sample.group != group])
    return [
        HeldOutScores(sample.sample, _costs(learned[sample.sample.group], sample), sample.traffic)
        for sample in prepared
    ]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A sample, its features [schedules, features], and the traffic model's predictions."""

    sample: TrainingSample
    kind: str
    names: tuple[str, ...]
    table: Features
    traffic: Numbers


def _prepare(sample: TrainingSample) -> _Prepared:
    names, predicted = tuple[str, ...](), np.empty(len(sample.schedules))
    rows: dict[int, Features] = {}
    for part in batch(sample.context, sample.schedules):
        estimate = traffic(part.context, part.family)
        names, table = features(part.context, part.family, estimate)
        rows |= dict(zip(map(int, part.indices), table, strict=True))
        predicted[part.indices] = estimate.seconds
    table = np.array([rows[i] for i in range(len(rows))])
    return _Prepared(sample, find(sample.schedules[0].kernel).family, names, table, predicted)


def _costs(weights: Weights, sample: _Prepared) -> Numbers:
    learned = dict(weights.scores).get(sample.kind)
    return sample.traffic if learned is None else -score(learned, sample.table)


def _weights(prepared: Sequence[_Prepared]) -> Weights:
    """A score for every family of microkernels with enough samples."""
    kinds: dict[str, list[_Prepared]] = {}
    for sample in prepared:
        kinds.setdefault(sample.kind, []).append(sample)
    scores = {kind: _fit(its) for kind, its in sorted(kinds.items()) if len(its) >= LAYERS}
    learned = [sample for kind in scores for sample in kinds[kind]]
    return Weights(
        prepared[0].names if prepared else (),
        tuple(
            (kind, learned_score)
            for kind, learned_score in scores.items()
            if learned_score is not None
        ),
        len(learned),
        sum(len(sample.table) for sample in learned),
    )


def _fit(prepared: Sequence[_Prepared]) -> LearnedScore | None:
    """Logistic regression without intercept on differences: sigmoid(s(a) - s(b)) is a's chance.

    None where no two schedules of a sample differ by more than the noise.
    """
    classifier, rng = regression(), np.random.default_rng(SEED)
    everything = np.concatenate([sample.table for sample in prepared])
    means, scales = everything.mean(axis=0), everything.std(axis=0)
    scales = np.where(scales > 1e-9, scales, 1.0)
    differences, faster = list[Features](), list[NDArray[np.bool_]]()
    for sample in prepared:
        a, b = _pairs(sample.sample.seconds, rng)
        terms = _terms((sample.table - means) / scales)
        differences.append(terms[a] - terms[b])
        faster.append(sample.sample.seconds[a] < sample.sample.seconds[b])
    decided = np.concatenate(faster)
    if decided.all() or not decided.any():  # a classifier needs both answers
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the iteration limit was reached
        weights = classifier.fit(np.concatenate(differences), decided).coef_[0]
    linear, squares = np.split(weights, 2)
    return LearnedScore(
        _floats(means), _floats(scales), _floats(linear), _floats(SQUARES * squares)
    )


def _terms(z: Features) -> Features:
    """Features and their squares: the score is linear in these."""
    return np.hstack([z, SQUARES * np.clip(z, -LIMIT, LIMIT) ** 2])


def _floats(values: Numbers) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def regression() -> Any:
    """The classifier, from scikit-learn. Raises UnsupportedError where that is not installed."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise UnsupportedError(
            f"learning needs scikit-learn, which cannot be imported ({error}): "
            "pip install 'polysci[learn]'; ranking by what was learned does not need it"
        ) from None
    return LogisticRegression(C=STRENGTH, fit_intercept=False, max_iter=500, tol=1e-4)


def _pairs(seconds: Numbers, rng: np.random.Generator) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Up to PAIRS pairs of schedules whose times differ by more than the noise, either first."""
    first, second = np.triu_indices(len(seconds), 1)
    slower = np.maximum(seconds[first], seconds[second])
    apart = np.flatnonzero(slower > (1 + NOISE) * np.minimum(seconds[first], seconds[second]))
    if len(apart) > PAIRS:
        apart = rng.choice(apart, PAIRS, replace=False)
    swapped = rng.random(len(apart)) < 0.5
    first, second = first[apart], second[apart]
    return np.where(swapped, second, first), np.where(swapped, first, second)


def training_samples(
    wisdom: Wisdom, target: Target, threads: int | None = None
) -> list[TrainingSample]:
    """Schedules that searches measured on this machine, with ``threads`` or any number of threads.

    Records that this version cannot read are left out. Raises WisdomError with fewer than LAYERS
    layers of two schedules or more, or fewer than SCHEDULES schedules.
    """
    layers: dict[tuple[str, int], list[Record]] = {}
    for record in wisdom.measurements(host_of(target), threads=threads):
        layers.setdefault((record.problem, record.threads), []).append(record)
    networks = _networks()
    samples = [
        sample
        for (key, count), records in layers.items()
        if (sample := _recorded_sample(key, count, records, target, networks))
    ]
    _enough(wisdom, samples, threads)
    return samples


def _recorded_sample(
    key: str, threads: int, records: Sequence[Record], target: Target, networks: dict[str, str]
) -> TrainingSample | None:
    try:
        problem = parse_key(key)
        context = context_of(problem, threads, target)
    except PolysciError:
        return None
    if problem.dtype != "f32":
        return None
    schedules, seconds = list[Schedule](), list[float]()
    for record in records:
        with suppress(PolysciError):
            parsed = schedule.parse(record.schedule)
            resolve(context.contraction, context.strides, parsed)  # it may be another version's
            schedules.append(parsed)
            seconds.append(record.seconds)
    if len(schedules) < 2:
        return None
    return TrainingSample(_group(problem, networks), context, tuple(schedules), np.array(seconds))


def _group(problem: Problem, networks: dict[str, str]) -> str:
    """The first network that has the layer, at any batch; else the layer itself."""
    single = problem.with_batch(1) if problem.batched else problem
    return networks.get(single.key, single.key)


def _networks() -> dict[str, str]:
    """The first network by name that has a layer, by the layer's key."""
    network_by_key: dict[str, str] = {}
    for name in layer_lists.names():
        for problem in layer_lists.load(name):
            stored = [problem]
            if problem.layout:  # which products lack
                stored += [problem.with_(layout="nchw")]
            for same in stored:
                network_by_key.setdefault(same.key, name)
    return network_by_key


def _enough(wisdom: Wisdom, samples: Iterable[TrainingSample], threads: int | None) -> None:
    counts = [len(sample.schedules) for sample in samples]
    if len(counts) < LAYERS or sum(counts) < SCHEDULES:
        where = "" if threads is None else f" with {threads} thread(s)"
        raise WisdomError(
            f"{wisdom.path}: expected at least {SCHEDULES} schedules of {LAYERS} layers, measured "
            f"on this machine{where}; got {sum(counts)} of {len(counts)}; "
            "'polysci optimize resnet50 --level patient' measures sixty of every layer"
        )
