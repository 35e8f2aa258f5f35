"""Rankers: each predicts the seconds of every schedule of a family; one row a ranker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from polysci.rank.estimate import Context, Estimate
from polysci.rank.traffic import traffic
from polysci.space import Family

RANKERS: Mapping[str, Callable[[Context, Family], Estimate]] = MappingProxyType(
    {"traffic": traffic}
)

__all__ = ["RANKERS", "Context", "Estimate"]
