"""Compiled code in a process of its own: checked against references, then timed."""
