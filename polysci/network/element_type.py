"""Whether a network that may be narrow is faster in f32, measured as a whole."""

from __future__ import annotations

from typing import Final

from polysci.network.profile import latency
from polysci.network.runner import Runner

TURNS: Final = 5  # of both, one after the other
TIE: Final = 0.02  # of the time: within it the narrow one stays, whose weights are half as large


def is_faster(plain: Runner, narrow: Runner) -> bool:
    """Whether ``plain`` takes less time a run than ``narrow`` by more than a tie.

    Of each the least of several medians counts: a neighbour on the machine can only add.
    """
    seconds: dict[str, list[float]] = {"plain": [], "narrow": []}
    for _ in range(TURNS):
        seconds["narrow"].append(latency(narrow))
        seconds["plain"].append(latency(plain))
    return min(seconds["plain"]) < (1 - TIE) * min(seconds["narrow"])
