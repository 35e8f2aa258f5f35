"""Minimal filtering: its coefficients are an identity of rationals, and exact numbers of f32."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from polysci.errors import SpecError
from polysci.numerics.filtering import OUTPUTS, POINTS, filtering

EVERY = [
    (m, taps, stride)
    for stride, rows in OUTPUTS.items()
    for taps, outputs in rows.items()
    for m in outputs
]


@pytest.mark.parametrize(("m", "taps", "stride"), EVERY)
def test_integers_are_filtered_exactly(m: int, taps: int, stride: int) -> None:
    own, random = filtering(m, taps, stride), np.random.default_rng(m + taps)
    x = [Fraction(int(it)) for it in random.integers(-9, 10, own.points)]
    w = [Fraction(int(it)) for it in random.integers(-9, 10, taps)]
    v = [sum(b * it for b, it in zip(row, x, strict=True)) for row in own.into]
    u = [sum(g * it for g, it in zip(row, w, strict=True)) for row in own.filter]
    y = [sum(a * p * q for a, p, q in zip(row, u, v, strict=True)) for row in own.back]
    assert y == [sum(x[stride * i + s] * w[s] for s in range(taps)) for i in range(m)]


@pytest.mark.parametrize(("m", "taps", "stride"), EVERY)
def test_coefficients_of_kernels_are_numbers_of_f32(m: int, taps: int, stride: int) -> None:
    into, _, back = filtering(m, taps, stride).matrices
    for matrix in (into, back):
        assert np.array_equal(matrix, matrix.astype(np.float32))


def test_pixels_a_stride_apart_have_points_of_their_own() -> None:
    own = filtering(4, 3, 2)
    into, factors, _ = own.matrices
    assert (own.parts, own.points) == ([5, 4], 9)
    assert not into[:5, 1::2].any() and np.array_equal(into[5:, 1::2], np.eye(4))
    assert not factors[:5, 1].any() and np.array_equal(factors[5:], [[0, 1, 0]] * 4)


def test_one_tap_rounds_nothing_but_the_sum_of_parts() -> None:
    rounded = [filtering(*own).roundings for own in ((1, 1), (1, 1, 2), (4, 1), (4, 3), (4, 3, 2))]
    assert rounded == [0, 0, 0, 6, 6]


def test_a_wrong_coefficient_is_found() -> None:
    own = filtering(4, 3)
    (first, *others), wrong = own.filter, Fraction(1, 5)
    with pytest.raises(SpecError, match=r"F\(4, 3\): x\[0\] w\[0\] in y\[0\] is not as"):
        replace(own, filter=((wrong, *first[1:]), *others))


def test_points_are_limited() -> None:
    assert len(set(POINTS)) == len(POINTS)
    with pytest.raises(SpecError, match=r"F\(6, 5\): at most 8 points are known"):
        filtering(6, 5)
