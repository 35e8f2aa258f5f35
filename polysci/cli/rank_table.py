"""What polysci rank prints: a layer's choices, times and scores, as text and as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from math import exp, log
from typing import TYPE_CHECKING, Any

from polysci.cli.layers import title

if TYPE_CHECKING:
    from polysci.ops.problem import Problem
    from polysci.polyhedral.schedule import Schedule
    from polysci.rank.shortlist import Choice
    from polysci.tune.ranker_scores import RankerScore, Ranking


@dataclass(slots=True)
class RankedLayer:
    """What is known of one layer: every ranker's choices, times, scores; or why there is nothing.

    ``times`` are seconds, or what is wrong with a schedule.
    """

    problem: Problem
    rankings: list[Ranking] = field(default_factory=list)
    times: dict[Schedule, float | str] = field(default_factory=dict)
    scores: dict[str, RankerScore] = field(default_factory=dict)
    fault: str = ""

    def time(self, choice: Choice) -> float | None:
        known = self.times.get(choice.schedule)
        return known if isinstance(known, float) else None

    @property
    def best(self) -> float | None:
        return min((t for t in self.times.values() if isinstance(t, float)), default=None)


def as_json(found: list[RankedLayer], threads: int) -> str:
    """A line a choice and a score, then a summary; times in seconds."""
    lines = [json.dumps(row) for one in found for row in _members(one, threads)]
    summary = {name: its | {"layers": n} for name, (n, its) in _means(found).items()}
    return "\n".join([*lines, json.dumps({"summary": {"layers": len(found), "rankers": summary}})])


def _members(one: RankedLayer, threads: int) -> Iterator[dict[str, Any]]:
    """A row a choice, then one a score; times in seconds."""
    layer = {
        "layer": title(one.problem),
        "problem": str(one.problem),
        "layout": one.problem.layout,
        "threads": threads,
    }
    if one.fault:
        yield layer | {"error": one.fault}
    for ranking in one.rankings:
        mine = layer | {"ranker": ranking.ranker}
        if ranking.fault:
            yield mine | {"error": str(ranking.fault)}
        for place, choice in enumerate(ranking.choices, 1):
            wrong = one.times.get(choice.schedule)
            yield mine | {
                "place": place,
                "schedule": str(choice.schedule),
                "cost": choice.cost,
                "predicted_seconds": choice.seconds,
                "seconds": one.time(choice),
                **({"error": wrong} if isinstance(wrong, str) else {}),
            }
    for name, score in one.scores.items():
        yield layer | {"ranker": name, "score": _figures(score)}


def _figures(score: RankerScore) -> dict[str, float]:
    return {name: value for name, value in asdict(score).items() if name != "ranker"}


def _means(found: list[RankedLayer]) -> dict[str, tuple[int, dict[str, float]]]:
    """Of each ranker with scores: on how many layers, geomean of first and few, mean of others."""
    means = {}
    for name in dict.fromkeys(name for one in found for name in one.scores):
        its = [one.scores[name] for one in found if name in one.scores]
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


def as_text(found: list[RankedLayer]) -> str:
    """A table a layer, and one over all."""
    from polysci.text.tables import columns

    parts = []
    for one in found:
        parts += [_heading(one), columns(list(_rows(one)), left=(0, 2)), *_faults(one), ""]
        if one.scores:
            rows = [_score_row(name, _figures(score)) for name, score in one.scores.items()]
            parts += [columns([_SCORE_HEAD, *rows]), ""]
    means = _means(found)
    if len(found) > 1 and means:
        rows = [(*_score_row(name, its), str(n)) for name, (n, its) in means.items()]
        parts += [
            f"{len(found)} layers: geomeans of first and few, means of tau and pairs",
            columns([(*_SCORE_HEAD, "layers"), *rows]), "",
        ]  # fmt: skip
    return "\n".join(parts[:-1])


_SCORE_HEAD = ("ranker", "first", "few", "tau", "pairs")


def _score_row(name: str, figures: dict[str, float]) -> tuple[str, ...]:
    return (name, *(f"{figures[column]:.3f}" for column in _SCORE_HEAD[1:]))


def _heading(one: RankedLayer) -> str:
    words, name = str(one.problem), title(one.problem)
    return words if name in words else f"{name}: {words}"


def _rows(one: RankedLayer) -> Iterator[tuple[str, ...]]:
    from polysci.text.tables import time_text

    yield ("ranker", "place", "schedule", "cost", "predicted",
           *(("measured", "of best") if one.times else ()))  # fmt: skip
    for ranking in one.rankings:
        for place, choice in enumerate(ranking.choices, 1):
            name = ranking.ranker if place == 1 else ""
            row: tuple[str, ...] = (name, str(place), str(choice.schedule), f"{choice.cost:.4g}",
                   time_text(choice.seconds))  # fmt: skip
            wrong = one.times.get(choice.schedule)
            if isinstance(wrong, str):
                row = (*row, f"FAILED: {_first(wrong):.60}")
            time, best = one.time(choice), one.best
            yield (*row, time_text(time), f"{best / time:.3f}") if time and best else row


def _faults(one: RankedLayer) -> Iterator[str]:
    if one.fault:
        yield f"  FAILED: {one.fault}"
    for ranking in one.rankings:
        if ranking.fault:
            yield f"  without {ranking.ranker}: {_first(str(ranking.fault))}"


def _first(text: str) -> str:
    return text.partition("\n")[0]
