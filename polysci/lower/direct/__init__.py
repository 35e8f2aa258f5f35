"""isl AST -> cgen -> C source."""
