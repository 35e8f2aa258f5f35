"""The learned ranker: a tournament of schedules, scored by weights trained on measured pairs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polysci.cost.estimate import Context
from polysci.cost.features import Features, features
from polysci.cost.traffic import traffic
from polysci.cost.weights import LIMIT, LearnedScore, Weights
from polysci.errors import SpecError
from polysci.polyhedral.footprint import Count
from polysci.space.enumerate import Family


def tournament(context: Context, family: Family) -> Count:
    """Minus the score of every schedule: of any two the one that costs less should be faster.

    Microkernel families without training samples are ordered by ``traffic``.
    Raises SpecError where the context has no weights, or weights of other features.
    """
    weights = context.weights
    if weights is None:
        raise SpecError(
            "ranker 'learned': nothing was learned on this machine yet; 'polysci learn' trains it "
            "on the schedules that earlier searches measured"
        )
    names, table = features(context, family)
    check(weights, names)
    kind = family.tiles[0].kernel.family
    learned_score = dict(weights.scores).get(kind)
    return (
        traffic(context, family).seconds if learned_score is None else -score(learned_score, table)
    )


def check(weights: Weights, names: tuple[str, ...]) -> None:
    """Raise SpecError unless the weights belong to these features."""
    if weights.features != names:
        other = sorted(set(weights.features) ^ set(names))
        difference = f"{', '.join(other)} in one of them only" if other else "another order"
        raise SpecError(
            f"weights: features: expected those of this polysci, got {difference:.200}; "
            "'polysci learn' trains anew"
        )


def score(learned: LearnedScore, table: Features) -> NDArray[np.float64]:
    """Score of every row of a table of features [schedules, features]; higher is faster."""
    z = (table - np.array(learned.means)) / np.array(learned.scales)
    near = np.clip(z, -LIMIT, LIMIT)
    scores: NDArray[np.float64] = z @ np.array(learned.linear) + near**2 @ np.array(learned.squares)
    return scores
