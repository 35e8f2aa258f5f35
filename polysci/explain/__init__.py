"""Why this schedule: what it moves through the caches, and what its rivals would cost."""

from polysci.explain.model import Explanation, explain
from polysci.explain.text import render

__all__ = ["Explanation", "explain", "render"]
