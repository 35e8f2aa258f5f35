"""The output of polysci rank: a layer's choices, times and scores, as text and as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from math import exp, log
from typing import TYPE_CHECKING, Any

from polysci.cli.layers import title

if TYPE_CHECKING:
    from polysci.cost.shortlist import Choice
    from polysci.ops.problem import Problem
    from polysci.space.schedule import Schedule
    from polysci.tune.ranker_scores import RankerScore, Ranking


@dataclass(slots=True)
class RankedLayer:
    """One layer: every ranker's choices, their times and scores; or the error in ``fault``.

    ``times`` are seconds, or the error of a schedule.
    """

    problem: Problem
    rankings: list[Ranking] = field(default_factory=list)
    times: dict[Schedule, float | str] = field(default_factory=dict)
    scores: dict[str, RankerScore] = field(default_factory=dict)
    fault: str = ""

    def time(self, choice: Choice) -> float | None:
        outcome = self.times.get(choice.schedule)
        return outcome if isinstance(outcome, float) else None

    @property
    def best(self) -> float | None:
        return min((t for t in self.times.values() if isinstance(t, float)), default=None)


def as_json(layers: list[RankedLayer], threads: int) -> str:
    """A line a choice and a score, then a summary; times in seconds."""
    lines = [json.dumps(row) for layer in layers for row in _members(layer, threads)]
    summary = {name: its | {"layers": n} for name, (n, its) in _means(layers).items()}
    return "\n".join([*lines, json.dumps({"summary": {"layers": len(layers), "rankers": summary}})])


def _members(ranked: RankedLayer, threads: int) -> Iterator[dict[str, Any]]:
    """A row a choice, then one a score; times in seconds."""
    layer = {
        "layer": title(ranked.problem),
        "problem": str(ranked.problem),
        "layout": ranked.problem.layout,
        "threads": threads,
    }
    if ranked.fault:
        yield layer | {"error": ranked.fault}
    for ranking in ranked.rankings:
        mine = layer | {"ranker": ranking.ranker}
        if ranking.fault:
            yield mine | {"error": str(ranking.fault)}
        for place, choice in enumerate(ranking.choices, 1):
            wrong = ranked.times.get(choice.schedule)
            yield mine | {
                "place": place,
                "schedule": str(choice.schedule),
                "cost": choice.cost,
                "predicted_seconds": choice.seconds,
                "seconds": ranked.time(choice),
                **({"error": wrong} if isinstance(wrong, str) else {}),
            }
    for name, score in ranked.scores.items():
        yield layer | {"ranker": name, "score": _figures(score)}


def _figures(score: RankerScore) -> dict[str, float]:
    return {name: value for name, value in asdict(score).items() if name != "ranker"}


def _means(layers: list[RankedLayer]) -> dict[str, tuple[int, dict[str, float]]]:
    """Return, for each ranker with scores, the number of layers and the means of its scores."""
    means = {}
    for name in dict.fromkeys(name for layer in layers for name in layer.scores):
        its = [layer.scores[name] for layer in layers if name in layer.scores]
        means[name] = (
            len(its),
            {
                "first": exp(sum(log(score.first) for score in its) / len(its)),
                "few": exp(sum(log(score.few) for score in its) / len(its)),
                "tau": sum(score.tau for score in its) / len(its),
                "pairs": sum(score.pairs for score in its) / len(its),
            },
        )
    return means


def as_text(layers: list[RankedLayer], width: int | None) -> str:
    """A table a layer, in ``width`` columns, and one over all."""
    from polysci.text.tables import columns, fit

    parts = []
    for layer in layers:
        choices = fit(
            list(_rows(layer)),
            width,
            drop=("cost", "predicted", "place"),
            clip=("schedule",),
            left=("ranker", "schedule"),
            indent="  ",
        )
        parts += [_heading(layer), choices, *_faults(layer), ""]
        if layer.scores:
            rows = [_score_row(name, _figures(score)) for name, score in layer.scores.items()]
            parts += [columns([_SCORE_HEAD, *rows]), ""]
    means = _means(layers)
    if len(layers) > 1 and means:
        rows = [(*_score_row(name, its), str(n)) for name, (n, its) in means.items()]
        parts += [
            f"{len(layers)} layers: geomeans of first and few, means of tau and pairs",
            columns([(*_SCORE_HEAD, "layers"), *rows]), "",
        ]  # fmt: skip
    return "\n".join(parts[:-1])


_SCORE_HEAD = ("ranker", "first", "few", "tau", "pairs")


def _score_row(name: str, figures: dict[str, float]) -> tuple[str, ...]:
    return (name, *(f"{figures[column]:.3f}" for column in _SCORE_HEAD[1:]))


def _heading(layer: RankedLayer) -> str:
    words, name = str(layer.problem), title(layer.problem)
    return words if name in words else f"{name}: {words}"


def _rows(layer: RankedLayer) -> Iterator[tuple[str, ...]]:
    from polysci.text.tables import time_text

    yield ("ranker", "place", "schedule", "cost", "predicted",
           *(("measured", "of best") if layer.times else ()))  # fmt: skip
    for ranking in layer.rankings:
        for place, choice in enumerate(ranking.choices, 1):
            name = ranking.ranker if place == 1 else ""
            row: tuple[str, ...] = (name, str(place), str(choice.schedule), f"{choice.cost:.4g}",
                   time_text(choice.seconds))  # fmt: skip
            wrong = layer.times.get(choice.schedule)
            if isinstance(wrong, str):
                row = (*row, "FAILED")
            time, best = layer.time(choice), layer.best
            yield (*row, time_text(time), f"{best / time:.3f}") if time and best else row


def _faults(layer: RankedLayer) -> Iterator[str]:
    if layer.fault:
        yield f"  FAILED: {layer.fault}"
    for schedule, outcome in layer.times.items():
        if isinstance(outcome, str):
            yield f"  {schedule}: FAILED: {_first(outcome)}"
    for ranking in layer.rankings:
        if ranking.fault:
            yield f"  without {ranking.ranker}: {_first(str(ranking.fault))}"


def _first(text: str) -> str:
    return text.partition("\n")[0]
