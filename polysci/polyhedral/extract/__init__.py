"""A C loop nest, as text or as a cgen tree, as a Scop."""

from polysci.polyhedral.extract.nest import extract

__all__ = ["extract"]
