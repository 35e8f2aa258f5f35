"""Rankers: each orders the schedules of a problem by a cost of its own; one row a ranker."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from polysci.rank.estimate import Context, Estimate
from polysci.rank.ranker import Ranker
from polysci.rank.traffic import traffic

RANKERS: Mapping[str, Ranker] = MappingProxyType(
    {
        "traffic": Ranker(
            "seconds by register-tile rates, traffic over the caches, packing and balance",
            lambda context, family: traffic(context, family).seconds,
        ),
    }
)

__all__ = ["RANKERS", "Context", "Estimate", "Ranker", "traffic"]
