"""oneDNN through the fastest calls of PyTorch, in every precision that it supports."""
