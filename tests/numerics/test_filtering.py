"""Minimal filtering: its coefficients are an identity of rationals, and exact numbers of f32."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from polysci.errors import SpecError
from polysci.numerics.filtering import OUTPUTS, POINTS, filtering

EVERY = [(m, taps) for taps, outputs in OUTPUTS.items() for m in outputs]


@pytest.mark.parametrize(("m", "taps"), EVERY)
def test_integers_are_filtered_exactly(m: int, taps: int) -> None:
    own, random = filtering(m, taps), np.random.default_rng(m + taps)
    x = [Fraction(int(it)) for it in random.integers(-9, 10, own.points)]
    w = [Fraction(int(it)) for it in random.integers(-9, 10, taps)]
    v = [sum(b * it for b, it in zip(row, x, strict=True)) for row in own.into]
    u = [sum(g * it for g, it in zip(row, w, strict=True)) for row in own.filter]
    y = [sum(a * p * q for a, p, q in zip(row, u, v, strict=True)) for row in own.back]
    assert y == [sum(x[i + s] * w[s] for s in range(taps)) for i in range(m)]


@pytest.mark.parametrize(("m", "taps"), EVERY)
def test_coefficients_of_kernels_are_numbers_of_f32(m: int, taps: int) -> None:
    into, _, back = filtering(m, taps).matrices
    for matrix in (into, back):
        assert np.array_equal(matrix, matrix.astype(np.float32))


def test_a_wrong_coefficient_is_found() -> None:
    own = filtering(4, 3)
    (first, *others), wrong = own.filter, Fraction(1, 5)
    with pytest.raises(SpecError, match=r"F\(4, 3\): x\[0\] w\[0\] in y\[0\] is not as"):
        replace(own, filter=((wrong, *first[1:]), *others))


def test_points_are_limited() -> None:
    assert len(set(POINTS)) == len(POINTS)
    with pytest.raises(SpecError, match=r"F\(6, 5\): at most 8 points are known"):
        filtering(6, 5)
