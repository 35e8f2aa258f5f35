"""isl AST -> cgen -> C source."""

from polysci.codegen.emit import Source, assemble, emit
from polysci.codegen.plan import Plan, plan

__all__ = ["Plan", "Source", "assemble", "emit", "plan"]
