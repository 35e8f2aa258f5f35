"""The driver: from a problem to its best schedule, by model alone or by measuring the best few."""

from polysci.lower.algorithm import SYMBOL, EmitOptions
from polysci.ops.model import model_of
from polysci.runtime.source import emit
from polysci.tune.context import context_of
from polysci.tune.result import LEVELS, Progress, Result, Trial
from polysci.tune.search import optimize
from polysci.tune.search_options import SearchOptions, check_options
from polysci.tune.tuners import TunerOptions

__all__ = [
    "LEVELS",
    "SYMBOL",
    "EmitOptions",
    "Progress",
    "Result",
    "SearchOptions",
    "Trial",
    "TunerOptions",
    "check_options",
    "context_of",
    "emit",
    "model_of",
    "optimize",
]
