"""A contraction given as a C loop nest of the user's own: problem, text, normal form, reference."""

from polysci.ops.nest.problem import Nest

__all__ = ["Nest"]
