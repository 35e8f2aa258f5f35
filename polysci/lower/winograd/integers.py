"""Integers for which Winograd's transforms and sums round nothing."""

from __future__ import annotations

from itertools import product
from types import MappingProxyType
from typing import Final

from polysci.errors import UnsupportedError
from polysci.lower.algorithm import ExactInputs
from polysci.ops.convolutions import Convolution
from polysci.ops.problem import Problem

CHANNELS: Final = 5  # of a filter that are not zero
_ONE: Final = (1,)
_THREE: Final = tuple((24 * a, 24 * b, 24) for a, b in product((1, -1), repeat=2))
# Taps along an axis by its stride. G divides three taps by 24; of more taps it holds points of
# polynomials, here such as it divides without a remainder of small primes: (4, -12, -5, 3, 1) is
# (t^2 - 4)(t^2 + 3 t - 1). With a stride of 2 those are polynomials of even taps and of odd ones,
# whose values at 1, -1 and 2, and of three taps at -2, have the factor 3. With |x| <= 1 a sum and
# all its partial sums have 24 bits at most, and products of points of two axes 11: f16 holds them.
PATTERNS: Final = MappingProxyType({
    1: (
        _ONE, *_THREE, (4, -12, -5, 3, 1), (4, 3, -5, -12, 1),
        (4, -12, -9, 15, 6, -3, -1), (-1, -3, 6, 15, -9, -12, 4),
    ),
    2: (
        _ONE, *_THREE, (4, 5, 1, -1), (2, 5, -1, -4), (4, 2, 3, -1, 2), (2, -1, -3, 5, -5),
        (1, 2, 3, 3, -1, 1), (-4, 1, 3, 6, 1, -1), (1, 2, -1, 3, 2, -2, 1), (2, 1, 3, -1, 1, 5, -3),
    ),
})  # fmt: skip


def exact_inputs(problem: Problem) -> ExactInputs:
    """Return the integers for a convolution. Raises UnsupportedError for other problems."""
    if not isinstance(problem, Convolution):
        raise UnsupportedError(f"{problem}: algorithm winograd: it is no convolution")
    axes = zip(problem.taps[-2:], problem.stride[-2:], strict=True)
    patterns = [[it for it in PATTERNS[step] if len(it) == taps] for taps, step in axes]
    return ExactInputs(largest=1, channels=CHANNELS, patterns=patterns)
