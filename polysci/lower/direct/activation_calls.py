"""Activations in generated C: the function by name, and the headers that define it."""

from __future__ import annotations

HEADERS = ("functions", "functions_exponential", "activations")


def activation_function(name: str) -> str:
    """The C function that applies a row of ACTIVATIONS to vectors in memory; empty for none."""
    return name and f"ps_each_{name}"


def activation_headers(name: str) -> tuple[str, ...]:
    """The headers beside those of every file, of which a file holds what it uses."""
    return HEADERS if name else ()
