"""The weights of the learned ranker: plain numbers, validated when they are read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Final, NoReturn

from polysci.errors import SpecError

FORMAT: Final = "polysci-weights"
VERSION: Final = 1
LIMIT: Final = 3.0  # standard deviations
_MOST: Final = 1000  # features


@dataclass(frozen=True, slots=True)
class LearnedScore:
    """The sum of ``linear * z + squares * z^2``, where z = (feature - mean) / scale.

    Higher is faster: the chance that one schedule is faster than another is the sigmoid of the
    difference of their scores (Bradley and Terry, Biometrika 39, 1952). In the squares z is clipped
    at LIMIT, so that they do not extrapolate beyond the measured schedules.
    """

    means: tuple[float, ...]
    scales: tuple[float, ...]
    linear: tuple[float, ...]
    squares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """A score for every family of microkernels (``brgemm``, ``depthwise``) with training samples.

    ``layers`` and ``schedules`` count the training samples; ``accuracy`` is the share of pairs of
    held-out networks that are ordered correctly, 0 where that was not tested.
    """

    features: tuple[str, ...]
    scores: tuple[tuple[str, LearnedScore], ...]
    layers: int = 0
    schedules: int = 0
    accuracy: float = 0.0

    def __str__(self) -> str:
        kinds = ", ".join(kind for kind, _ in self.scores)
        return f"{self.schedules} schedules of {self.layers} layers ({kinds})"

    def to_json(self) -> str:
        """The text that ``from_json`` reads back."""
        content: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        content |= asdict(self) | {"scores": {kind: asdict(score) for kind, score in self.scores}}
        return json.dumps(content, allow_nan=False) + "\n"


def from_json(text: str) -> Weights:
    """The weights of a text that ``to_json`` wrote.

    Raises SpecError that names the field and the rule for anything else.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"weights: not valid JSON: {error}") from None
    data = _object("fields", data, ("format", "version", *Weights.__dataclass_fields__))
    for name, value in (("format", FORMAT), ("version", VERSION)):
        if data[name] != value:
            _refuse(name, repr(value), data[name])
    features = _names(data["features"])
    if not isinstance(data["scores"], dict) or not data["scores"]:
        _refuse("scores", "an object with a score for each family of microkernels", data["scores"])
    scores = data["scores"].items()
    return Weights(
        features,
        tuple((kind, _score(f"scores.{kind}", score, len(features))) for kind, score in scores),
        int(_number("layers", data["layers"], 0, 1e9)),
        int(_number("schedules", data["schedules"], 0, 1e9)),
        _number("accuracy", data["accuracy"], 0.0, 1.0),
    )


def _object(field: str, value: object, names: Iterable[str]) -> dict[str, Any]:
    names = tuple(names)
    if not isinstance(value, dict) or value.keys() != set(names):
        actual = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
        _refuse(field, f"exactly {', '.join(names)}", actual)
    return value


def _score(field: str, value: object, size: int) -> LearnedScore:
    data = _object(field, value, LearnedScore.__dataclass_fields__)
    means, scales, linear, squares = (
        _numbers(f"{field}.{name}", data[name], size) for name in LearnedScore.__dataclass_fields__
    )
    if min(scales) <= 0:
        _refuse(f"{field}.scales", "positive numbers", min(scales))
    return LearnedScore(means, scales, linear, squares)


def _names(value: object) -> tuple[str, ...]:
    all_text = isinstance(value, list) and all(isinstance(name, str) for name in value)
    if (
        not isinstance(value, list)
        or not all_text
        or not 0 < len(set(value)) == len(value) <= _MOST
    ):
        _refuse("features", f"1 to {_MOST} different names", value)
    return tuple(value)


def _numbers(field: str, value: object, size: int) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) != size:
        _refuse(field, f"a list of {size} numbers, one a feature", value)
    return tuple(_number(f"{field}[{i}]", item, -1e12, 1e12) for i, item in enumerate(value))


def _number(field: str, value: object, low: float, high: float) -> float:
    right = isinstance(value, int | float) and not isinstance(value, bool)
    if not right or not isinstance(value, int | float) or not isfinite(value):
        _refuse(field, "a finite number", value)
    if not low <= value <= high:
        _refuse(field, f"a number in {low:g}..{high:g}", value)
    return float(value)


def _refuse(field: str, rule: str, actual: object) -> NoReturn:
    raise SpecError(f"weights: {field}: expected {rule}, got {actual!r:.80}")
