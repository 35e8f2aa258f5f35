"""Quality of a ranking: the speed of its first choices, and how well it orders pairs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polysci.errors import SpecError

Numbers = NDArray[np.float64]
NOISE = 0.02  # of the shorter time: pairs that differ by less are left out
BITS = 30  # of a cost that count: equal sums in another order are a tie


def best_of_top(costs: Numbers, seconds: Numbers, count: int = 1) -> float:
    """Least time over all, divided by the least among the ``count`` schedules of least cost.

    1 is perfect; costs that are equal but for rounding keep the order in which they come.
    """
    _same(costs, seconds)
    parts, exponents = np.frexp(costs)
    rounded = np.ldexp(np.round(np.ldexp(parts, BITS)), exponents - BITS)
    first = np.argsort(rounded, kind="stable")[:count]
    return float(seconds.min() / seconds[first].min())


def tau(costs: Numbers, seconds: Numbers) -> float:
    """Kendall's tau-b between costs and times; 0 where either is constant."""
    _same(costs, seconds)
    if np.ptp(costs) == 0 or np.ptp(seconds) == 0:
        return 0.0
    from scipy.stats import kendalltau  # a quarter of a second to import, and few need it

    return float(kendalltau(costs, seconds).statistic)


def pair_accuracy(costs: Numbers, seconds: Numbers, noise: float = NOISE) -> float:
    """Share of the pairs that the costs order as the times do; a tie in cost counts half.

    Pairs whose times differ by less than ``noise`` are left out; 1 where no pair remains.
    """
    _same(costs, seconds)
    first, second = np.triu_indices(len(costs), 1)
    apart = np.maximum(seconds[first], seconds[second]) > (1 + noise) * np.minimum(
        seconds[first], seconds[second]
    )
    first, second = first[apart], second[apart]
    if not len(first):
        return 1.0
    agree = np.sign(costs[first] - costs[second]) * np.sign(seconds[first] - seconds[second])
    return float(np.mean((agree + 1) / 2))


def _same(costs: Numbers, seconds: Numbers) -> None:
    if len(costs) != len(seconds) or not len(costs):
        raise SpecError(f"costs and seconds: expected as many, at least one; got {len(costs)} "
                        f"and {len(seconds)}")  # fmt: skip
