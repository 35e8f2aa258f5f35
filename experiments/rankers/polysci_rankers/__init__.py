"""Rankers to compare the model with, and an example of a package that adds rankers to polysci.

``tiles`` follows a published method; ``constant``, ``rules`` and ``random`` are baselines, which a
model must beat. The entry points in pyproject.toml name the four rows below.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from polysci.cost import Ranker
from polysci_rankers.bottleneck import bottleneck
from polysci_rankers.constant import constant
from polysci_rankers.random_order import random_order
from polysci_rankers.rules import rules
from polysci_rankers.tiles import families as tile_families

TILES = Ranker(
    "the slowest level's seconds, at tile sizes found by continuous optimisation (MOpt)",
    bottleneck,
    tile_families,
)
CONSTANT = Ranker("distance to one schedule template, the same for every layer", constant)
RULES = Ranker("what a schedule breaks of a library's rules of thumb", rules)
RANDOM = Ranker("a hash of the schedule's words", random_order)
RANKERS: Mapping[str, Ranker] = MappingProxyType(
    {"tiles": TILES, "constant": CONSTANT, "rules": RULES, "random": RANDOM}
)

__all__ = ["CONSTANT", "RANDOM", "RANKERS", "RULES", "TILES"]
