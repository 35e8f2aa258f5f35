"""Why this schedule: what it moves through the caches, and what its rivals would cost."""

from polysci.explain.members import members
from polysci.explain.model import Explanation, account, explain
from polysci.explain.text import render

__all__ = ["Explanation", "account", "explain", "members", "render"]
