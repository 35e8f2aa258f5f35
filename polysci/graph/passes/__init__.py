"""Passes from a graph to one that computes the same outputs, up to rounding."""
