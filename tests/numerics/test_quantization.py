"""Scales: how whole sums become 8-bit results, against the same steps one by one."""

import runpy
from fractions import Fraction
from importlib import resources
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci.numerics.dtypes import DTYPES
from polysci.numerics.quantization import Scales

TYPES = {"u8": (DTYPES["u8"], 0, 255), "s8": (DTYPES["s8"], -128, 127)}
SCALE = st.floats(-4, 4, width=32)
SUMS = st.integers(-(2**31), 2**31 - 1)


def f32(exact: Fraction) -> Fraction:
    """An exact number rounded to f32; float64 on the way would round twice."""
    if exact == 0:
        return exact
    power, size = 0, abs(exact)
    while size >= 2**24:
        size, power = size / 2, power + 1
    while size < 2**23 and power > -149:
        size, power = size * 2, power - 1
    return (1 if exact > 0 else -1) * round(size) * Fraction(2) ** power  # ties to even


def one(total: int, scale: float, scales: Scales, limits: tuple[int, int], other: int | None,
        clamp: tuple[float, float] | None) -> int:  # fmt: skip
    """One result, step by step in exact numbers, rounded where a processor rounds."""
    real = f32(f32(Fraction(total)) * Fraction(scale))
    if other is not None:
        share = Fraction(float(np.float32(scales.residual_scale)))
        real = f32(real + f32(Fraction(other - scales.residual_zero) * share))
    if clamp is not None:
        real = min(max(real, Fraction(clamp[0])), Fraction(clamp[1]))
    return min(max(round(real) + scales.y_zero, limits[0]), limits[1])


@given(
    st.sampled_from(sorted(TYPES)), st.lists(st.tuples(SUMS, SCALE), min_size=1, max_size=8),
    st.integers(-128, 255), st.floats(-2, 2, width=32), st.integers(-128, 255),
    st.none() | st.tuples(st.integers(-300, 0), st.integers(0, 300)), st.randoms(),
)  # fmt: skip
def test_every_step_is_rounded_by_itself(
    name: str,
    drawn: list,
    y_zero: int,
    share: float,
    zero: int,
    clamp: tuple | None,
    pick: Random,
) -> None:
    dtype, *limits = TYPES[name]
    sums, scale = (np.array(column) for column in zip(*drawn, strict=True))
    scales = Scales(scale, y_zero, share, zero)
    residual = np.array([pick.randint(*limits) for _ in drawn], dtype.numpy)
    for other in (None, residual):
        got = scales.result(sums, (len(drawn),), dtype, other, clamp)
        beside = [None] * len(drawn) if other is None else other.tolist()
        expected = [
            one(total, factor, scales, tuple(limits), at, clamp)
            for (total, factor), at in zip(drawn, beside, strict=True)
        ]
        assert got.dtype == dtype.numpy and got.tolist() == expected


@pytest.mark.parametrize(
    ("sums", "expected"),
    [([1, 3, 5, 7], [0, 2, 2, 4]), ([-1, -3, -5], [0, 0, 0]), ([509, 510, 511], [254, 255, 255])],
)
def test_ties_go_to_the_even_one_and_u8_saturates(sums: list[int], expected: list[int]) -> None:
    got = Scales(0.5).result(np.array(sums), (len(sums),), DTYPES["u8"])
    assert got.tolist() == expected


def test_s8_saturates_around_its_zero() -> None:
    got = Scales(1.0, y_zero=-100).result(np.array([-29, -28, 0, 227, 228]), (5,), DTYPES["s8"])
    assert got.tolist() == [-128, -128, -100, 127, 127]


def test_the_zero_point_comes_after_rounding() -> None:
    """0.5 rounds to 0 and -0.5 to 0, so that both are the zero point, odd as it is."""
    assert Scales(0.5, y_zero=7).result(np.array([1, -1]), (2,), DTYPES["u8"]).tolist() == [7, 7]


def test_relu_is_at_the_zero_point() -> None:
    got = Scales(y_zero=10).result(np.array([-5, 0, 5]), (3,), DTYPES["u8"], clamp=(0, np.inf))
    assert got.tolist() == [10, 10, 15]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("y_zero", [-128, 0, 127, 255])
def test_what_is_far_out_saturates(name: str, y_zero: int) -> None:
    dtype, low, high = TYPES[name]
    sums = np.array([-(2**31), 2**31 - 1])
    for scale in (1.0, 1e30):
        assert Scales(scale, y_zero).result(sums, (2,), dtype).tolist() == [low, high]
    for clamp, bound in (((-1e30, -1e30), low), ((1e30, 1e30), high), ((-np.inf, np.inf), None)):
        got = Scales(1.0, y_zero).result(sums, (2,), dtype, clamp=clamp).tolist()
        assert got == ([low, high] if bound is None else [bound, bound])


def test_one_scale_serves_all_channels() -> None:
    for scale in (0.25, np.float64(0.25), np.array(0.25), np.array([0.25] * 3, np.float16)):
        found = Scales(scale).by_channel(3)
        assert found.dtype == np.float32 and found.tolist() == [0.25] * 3
        assert found.flags.c_contiguous
    assert Scales().by_channel(2).tolist() == [1.0, 1.0]


def test_channels_lie_where_the_layout_has_them() -> None:
    sums = np.full((1, 2, 2, 2), 10)
    scales = Scales([1.0, 2.0])
    assert scales.result(sums, (1, 1, 1, 2), DTYPES["u8"])[0, 0, 0].tolist() == [10, 20]
    assert scales.result(sums, (1, 2, 1, 1), DTYPES["u8"])[0, :, 0, 0].tolist() == [10, 20]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": float("nan")}, "scale: expected a finite number or one a channel, got nan"),
        ({"scale": [1.0, np.inf]}, "scale: expected a finite number"),
        ({"scale": np.array([1.0, np.inf])}, r"got shape \(2,\), values from 1.0 to inf"),
        ({"scale": 1e300}, "scale: expected a finite number"),
        ({"scale": [[1.0], [1.0, 2.0]]}, "scale: expected"),
        ({"scale": True}, "scale: expected"),
        ({"scale": np.ones((2, 2))}, r"got shape \(2, 2\)"),
        ({"scale": "half"}, "scale: expected"),
        ({"scale": None}, "scale: expected"),
        ({"scale": []}, "scale: expected"),
        ({"residual_scale": np.inf}, "residual_scale: expected a number of at most 2.100, got inf"),
        ({"residual_scale": 1e31}, "residual_scale: expected a number of at most"),
        ({"residual_scale": [1.0]}, "residual_scale: expected a number of at most"),
        ({"residual_scale": "1"}, "residual_scale: expected a number of at most"),
        ({"y_zero": 256}, "y_zero: expected -128 to 255, got 256"),
        ({"y_zero": -129}, "y_zero: expected -128 to 255, got -129"),
        ({"y_zero": 1.5}, "y_zero: expected -128 to 255, got 1.5"),
        ({"y_zero": "0"}, "y_zero: expected -128 to 255, got '0'"),
        ({"residual_zero": 300}, "residual_zero: expected -128 to 255, got 300"),
    ],
)
def test_bad_values_are_named(arguments: dict, message: str) -> None:
    for kind in (Scales, exported()):
        with pytest.raises(ValueError, match=message):
            kind(**arguments)


def exported() -> type:
    """The class that Python packages come with."""
    with resources.as_file(resources.files("polysci.export") / "templates/_values.py") as path:
        values: type = runpy.run_path(str(path))["Scales"]
    return values


@pytest.mark.parametrize("scale", [[1.0, 2.0], [1.0]])
def test_another_number_of_channels_is_refused(scale: list[float]) -> None:
    with pytest.raises(ValueError, match=r"scale: expected shape \(3,\), got \("):
        Scales(scale).by_channel(3)


def test_they_are_fixed() -> None:
    given_ = np.array([1.0, 2.0], np.float32)
    scales = Scales(given_)
    given_[0] = 5.0
    assert scales.by_channel(2).tolist() == [1.0, 2.0]
    with pytest.raises(AttributeError):
        scales.y_zero = 3  # type: ignore[misc]
