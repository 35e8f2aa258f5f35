"""The driver: from a problem to its best schedule, by model alone or by measuring the best few."""

from polysci.algorithms.algorithm import SYMBOL, EmitOptions
from polysci.algorithms.lowering import emit, model_of
from polysci.tune.context import context_of
from polysci.tune.result import LEVELS, Progress, Result, SearchLevel, Trial
from polysci.tune.search import check_options, optimize

__all__ = [
    "LEVELS",
    "SYMBOL",
    "EmitOptions",
    "Progress",
    "Result",
    "SearchLevel",
    "Trial",
    "check_options",
    "context_of",
    "emit",
    "model_of",
    "optimize",
]
