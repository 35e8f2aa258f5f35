"""The driver: from a problem to its best schedule, by model alone or by measuring the best few."""

from polysci.algorithms.lowering import SYMBOL, emit, model_of
from polysci.tune.context import context_of
from polysci.tune.result import LEVELS, Level, Progress, Result, Trial
from polysci.tune.search import optimize

__all__ = [
    "LEVELS",
    "SYMBOL",
    "Level",
    "Progress",
    "Result",
    "Trial",
    "context_of",
    "emit",
    "model_of",
    "optimize",
]
