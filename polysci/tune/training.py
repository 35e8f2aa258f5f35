"""Learn to order schedules from measured pairs of them; judge that by networks held out."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysci.errors import PolysciError, SpecError, UnsupportedError
from polysci.polyhedral.schedule import Schedule
from polysci.rank import Context, traffic
from polysci.rank.batch import batch
from polysci.rank.features import Features, features
from polysci.rank.learned import score
from polysci.rank.metrics import NOISE, best_of_top, pair_accuracy
from polysci.rank.weights import LIMIT, LearnedScore, Weights, from_json
from polysci.runtime.build.folder import cache_dir
from polysci.runtime.measurement import host_of
from polysci.target.host import Target
from polysci.target.microkernels import find

LAYERS = 3  # with one family of microkernels: fewer say nothing of others
PAIRS = 400  # of one layer, drawn from all that differ by more than the noise
SEED = 0
STRENGTH = 0.1  # inverse of the penalty on squared weights
SQUARES = 0.3  # of a square beside its feature: the smaller, the more its weight is penalised
_log = logging.getLogger(__name__)
Progress = Callable[[str], None]
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """Measured schedules of one layer; ``group`` is its network: what is held out together."""

    group: str
    context: Context
    schedules: tuple[Schedule, ...]
    seconds: Numbers

    def __post_init__(self) -> None:
        if len(self.schedules) != len(self.seconds) or len(self.schedules) < 2:
            raise SpecError(
                f"lesson of {self.group!r}: expected a time for each of two or more schedules, "
                f"got {len(self.schedules)} schedules and {len(self.seconds)} times"
            )
        if not (np.isfinite(self.seconds) & (self.seconds > 0)).all():
            raise SpecError(f"lesson of {self.group!r}: seconds: expected positive numbers")


@dataclass(frozen=True, slots=True)
class HeldOutScores:
    """A lesson as it is ordered by weights learned from the other groups, and by the model."""

    lesson: TrainingSample
    costs: Numbers
    traffic: Numbers

    @property
    def accuracy(self) -> tuple[float, float]:
        """Share of pairs in the right order: learned, traffic."""
        seconds = self.lesson.seconds
        return pair_accuracy(self.costs, seconds), pair_accuracy(self.traffic, seconds)

    @property
    def top(self) -> tuple[float, float]:
        """Best time over that of the first choice: learned, traffic."""
        return best_of_top(self.costs, self.lesson.seconds), best_of_top(
            self.traffic, self.lesson.seconds
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """Several held-out layers together; pairs are (learned, traffic).

    ``accuracy`` is the mean of the layers, ``top`` the geometric mean of what the first choice
    reaches of the best measured speed, ``worst`` the least of that.
    """

    layers: int
    schedules: int
    accuracy: tuple[float, float]
    top: tuple[float, float]
    worst: tuple[float, float]


def judge_ranker(held: Sequence[HeldOutScores]) -> Judgement:
    """The figures of some held-out layers together."""
    accuracy, top = (np.array([getattr(one, name) for one in held]) for name in ("accuracy", "top"))
    return Judgement(
        len(held),
        sum(len(one.lesson.schedules) for one in held),
        _both(accuracy.mean(axis=0)),
        _both(np.exp(np.log(top).mean(axis=0))),
        _both(top.min(axis=0)),
    )


def _both(values: Numbers) -> tuple[float, float]:
    return float(values[0]), float(values[1])


def train(training: Sequence[TrainingSample]) -> Weights:
    """Weights for the ranker ``learned``, from all lessons; the same lessons give the same ones.

    A family of microkernels with fewer than LAYERS lessons is left to ``traffic``. Raises SpecError
    where there is nothing to learn from, UnsupportedError without scikit-learn.
    """
    weights = _weights([_studied(lesson) for lesson in training])
    if not weights.scores:
        raise SpecError(
            f"lessons: expected {LAYERS} or more of one family of microkernels, with times that "
            f"differ by more than {NOISE:.0%}; got {len(training)}"
        )
    return weights


def held_out(
    training: Sequence[TrainingSample], progress: Progress | None = None
) -> list[HeldOutScores]:
    """Every lesson under weights from the lessons of all other groups, in the order given.

    ``progress(text)`` before every group. Raises SpecError where there is only one group,
    UnsupportedError without scikit-learn.
    """
    groups = list(dict.fromkeys(lesson.group for lesson in training))
    if len(groups) < 2:
        raise SpecError(f"lessons: expected two groups or more, to hold one out; got {groups}")
    studied, learned = [_studied(lesson) for lesson in training], dict[str, Weights]()
    for number, group in enumerate(groups, 1):
        if progress:
            progress(f"[{number}/{len(groups)}] learning without {group}")
        learned[group] = _weights([one for one in studied if one.lesson.group != group])
    return [
        HeldOutScores(one.lesson, _costs(learned[one.lesson.group], one), one.traffic)
        for one in studied
    ]


@dataclass(frozen=True, slots=True)
class _Studied:
    """A lesson, its features [schedules, features], and what the traffic model predicts."""

    lesson: TrainingSample
    kind: str
    names: tuple[str, ...]
    table: Features
    traffic: Numbers


def _studied(lesson: TrainingSample) -> _Studied:
    names, predicted = tuple[str, ...](), np.empty(len(lesson.schedules))
    rows: dict[int, Features] = {}
    for one in batch(lesson.context, lesson.schedules):
        estimate = traffic(one.context, one.family)
        names, table = features(one.context, one.family, estimate)
        rows |= dict(zip(map(int, one.indices), table, strict=True))
        predicted[one.indices] = estimate.seconds
    table = np.array([rows[i] for i in range(len(rows))])
    return _Studied(lesson, find(lesson.schedules[0].kernel).family, names, table, predicted)


def _costs(weights: Weights, one: _Studied) -> Numbers:
    found = dict(weights.scores).get(one.kind)
    return one.traffic if found is None else -score(found, one.table)


def _weights(studied: Sequence[_Studied]) -> Weights:
    """A score for every family of microkernels of which there are enough lessons."""
    kinds: dict[str, list[_Studied]] = {}
    for one in studied:
        kinds.setdefault(one.kind, []).append(one)
    found = {kind: _fit(its) for kind, its in sorted(kinds.items()) if len(its) >= LAYERS}
    learned = [one for kind in found for one in kinds[kind]]
    return Weights(
        studied[0].names if studied else (),
        tuple((kind, one) for kind, one in found.items() if one is not None),
        len(learned),
        sum(len(one.table) for one in learned),
    )


def _fit(studied: Sequence[_Studied]) -> LearnedScore | None:
    """Logistic regression without intercept on differences: sigmoid(s(a) - s(b)) is a's chance.

    None where no two schedules of a lesson differ by more than the noise.
    """
    classifier, drawn = regression(), np.random.default_rng(SEED)
    everything = np.concatenate([one.table for one in studied])
    means, scales = everything.mean(axis=0), everything.std(axis=0)
    scales = np.where(scales > 1e-9, scales, 1.0)
    differences, faster = list[Features](), list[NDArray[np.bool_]]()
    for one in studied:
        a, b = _pairs(one.lesson.seconds, drawn)
        terms = _terms((one.table - means) / scales)
        differences.append(terms[a] - terms[b])
        faster.append(one.lesson.seconds[a] < one.lesson.seconds[b])
    decided = np.concatenate(faster)
    if decided.all() or not decided.any():  # one kind of answer: not enough pairs
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the last digits are still moving
        found = classifier.fit(np.concatenate(differences), decided).coef_[0]
    linear, squares = np.split(found, 2)
    return LearnedScore(
        _floats(means), _floats(scales), _floats(linear), _floats(SQUARES * squares)
    )


def _terms(z: Features) -> Features:
    """Features and their squares: what the score is linear in."""
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


def _pairs(
    seconds: Numbers, drawn: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Up to PAIRS pairs of schedules whose times differ by more than the noise, either first."""
    one, two = np.triu_indices(len(seconds), 1)
    slower = np.maximum(seconds[one], seconds[two])
    apart = np.flatnonzero(slower > (1 + NOISE) * np.minimum(seconds[one], seconds[two]))
    if len(apart) > PAIRS:
        apart = drawn.choice(apart, PAIRS, replace=False)
    swapped = drawn.random(len(apart)) < 0.5
    one, two = one[apart], two[apart]
    return np.where(swapped, two, one), np.where(swapped, one, two)


def weights_path(target: Target) -> Path:
    """Where the weights of a machine are kept."""
    return cache_dir() / f"learned-{host_of(target)}.json"


def load_weights(target: Target) -> Weights | None:
    """The weights of this machine; None if nothing was learned or the file is damaged (logged)."""
    path = weights_path(target)
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, PolysciError) as error:
        _log.warning("ignoring %s: %s; 'polysci learn' writes it anew", path, error)
        return None


def keep(target: Target, weights: Weights) -> Path:
    """Replace the machine's weights; returns the file. Raises OSError."""
    path = weights_path(target)
    aside = path.with_suffix(".new")
    aside.write_text(weights.to_json(), encoding="utf-8")
    aside.replace(path)
    return path
