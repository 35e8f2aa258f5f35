"""Whole networks: a graph's operators as layers and loops, fused, placed in memory, and as C."""
