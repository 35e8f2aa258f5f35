"""Losses of results: roots of sums of squares of differences, over those of the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import sqrt

import numpy as np

from polysci.errors import SpecError
from polysci.numerics.arrays import Array

Say = Callable[[str], None]
Results = Mapping[str, Array]  # of a run, by output


def largest_loss(runs: Iterable[Results], expected: Iterable[Results]) -> float:
    """Return the largest loss of an output over all runs; of whole numbers that of the share off.

    ``expected`` are the results in f32, run by run.
    """
    off, size = dict[str, float](), dict[str, float]()
    for results, wanted in zip(runs, expected, strict=True):
        for name, value in wanted.items():
            own = results[name].astype(np.float64)
            if value.dtype.kind == "f":
                more = (
                    float(np.square(own - value).sum()),
                    float(np.square(value, dtype=float).sum()),
                )
            else:
                more = float((own != value).sum()), float(value.size)
            off[name] = off.get(name, 0.0) + more[0]
            size[name] = size.get(name, 0.0) + more[1]
    return max((ratio(off[name], size[name]) for name in off), default=0.0)


def check_budget(max_loss: float) -> None:
    """Raise SpecError for a number that is no loss."""
    if not 0 <= max_loss < 1:
        raise SpecError(f"max_loss {max_loss}: expected a number from 0 to less than 1")


def ratio(off: float, size: float) -> float:
    """Return the loss of sums of squares."""
    return sqrt(off / size) if size else float(off > 0)
