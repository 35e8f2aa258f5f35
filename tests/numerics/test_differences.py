"""How far outputs are from others, and what is told of those that are no finite numbers."""

import math

import numpy as np
import pytest

from polysci.numerics.differences import compare_outputs, largest_error


@pytest.mark.parametrize(
    ("ours", "theirs", "number", "told"),
    [
        ([math.nan] * 3, [math.nan] * 3, None, "NaN or infinite: 3 in both"),
        ([math.nan, 1.0], [math.nan, 1.5], 0.5 / 1.5, "0.33; NaN or infinite: 1 in both"),
        ([math.nan, 1.0], [2.0, 1.0], None, "NaN or infinite: 1 on one side or not the same"),
        (
            [math.inf, math.nan, 1.0], [-math.inf, math.nan, 1.0], None,
            "NaN or infinite: 1 in both, 1 on one side or not the same",
        ),
        ([1.0], [1.0], 0.0, "0"), ([], [], 0.0, "0"),
    ],
)  # fmt: skip
def test_what_is_not_finite_is_counted(
    ours: list[float], theirs: list[float], number: float | None, told: str
) -> None:
    found = compare_outputs([np.array(ours)], [np.array(theirs)])
    assert found.number == (None if number is None else pytest.approx(number))
    assert str(found) == told


@pytest.mark.parametrize(
    ("ours", "theirs", "error"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.2), ([0.0], [0.25], 0.25), ([200.0], [100.0], 1.0),
        ([math.nan], [1.0], math.inf), ([1.0], [math.nan], math.inf),
        ([math.nan, math.inf], [math.nan, math.inf], 0.0), ([math.inf], [-math.inf], math.inf),
        ([math.inf, 1.0], [math.inf, 2.0], 0.5), ([], [], 0.0),
    ],
)  # fmt: skip
def test_how_far_outputs_are(ours: list[float], theirs: list[float], error: float) -> None:
    assert largest_error([np.array(ours)], [np.array(theirs)]) == error


def test_whole_numbers_do_not_wrap_around() -> None:
    ours, theirs = np.array([0], np.uint8), np.array([255], np.uint8)
    assert largest_error([theirs], [ours]) == 255 and largest_error([ours], [theirs]) == 1
    assert largest_error([np.array([True])], [np.array([True])]) == 0
