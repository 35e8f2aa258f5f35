"""Element expressions, loops over buffers, and the interpreter that runs them."""
