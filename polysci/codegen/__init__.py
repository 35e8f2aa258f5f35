"""isl AST -> cgen -> C source."""

from polysci.codegen.emit import Source, assemble, emit

__all__ = ["Source", "assemble", "emit"]
