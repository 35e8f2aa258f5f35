"""Why this schedule: what it moves through the caches, and what its rivals would cost."""

from polysci.explain.comments import loop_comments
from polysci.explain.levels import sizes_of
from polysci.explain.measured_time import MeasuredTime
from polysci.explain.model import Explanation, account, explain
from polysci.explain.text import members, render

__all__ = [
    "Explanation",
    "MeasuredTime",
    "account",
    "explain",
    "loop_comments",
    "members",
    "render",
    "sizes_of",
]
