"""Reductions to one result over several iterators, in the order of these and of memory."""

from __future__ import annotations

import numpy as np
import pytest

from polysci import notation
from tests.support.flags import compiler_at

INPUTS = "float(33,16) A, double(9,4) D, float(36,3,17) B, int(33) I"
RANDOM = np.random.default_rng(4)
ARRAYS = {
    "A": RANDOM.integers(-8, 9, (33, 16)).astype("f4"),
    "D": RANDOM.integers(1, 3, (9, 4)).astype("f8"),
    "B": RANDOM.integers(0, 3, (36, 3, 17)).astype("f4"),
    "I": RANDOM.integers(0, 8, 33).astype("i4"),
}
ARRAYS["B"][0, 0, :] = np.arange(17) < 16  # the smallest is first met where it is not the first
BACKWARDS = [
    "Z +=! A(i, 15-j)",
    "Z +=! A(i, 3-j) where j in 0:2",
    "Z +=! A(i, 15-j) * A(2, k) where k in 3:4",
    "Z +=! A(32-i, 15-j)",
    "Z +=! A(i, (j*5) % 16) where j in 0:16",
    "Z +=! A(i, 15 - j/2) where j in 0:16",
    "Z +=! A(i, I(j)) where j in 0:4",
    "Z +=! D(i, 3-j)",
    "Z *=! D(i, 3-j)",
    "Z(k) +=! B(k, j, 16-i) where i in 0:4",
]
# The first of equal values, though the axis that lies side by side in memory is no inner loop.
PLACES = [
    "Z argmin=! I(k) * 0 + B(i, j, k)",
    "Y min=! I(k) * 0 + B(i, j, k) Z argmin=! I(k) * 0 + B(i, j, k)",
    "Z argmax=! B(2, k, i) + j where i in 0:17, k in 0:3, j in 0:2",
    "Z argmax=! int(B(i/2, 2, k)) where j in 0:3, i in 0:36",
    "Z argmin=! B(0, k, j+i) where i in 0:17, k in 0:3, j in 0:1",
    "Y max=! B(2, k, i) + j where i in 0:17, k in 0:3, j in 0:2 "
    "Z argmax=! B(2, k, i) + j where i in 0:17, k in 0:3, j in 0:2",
]


def check(statements: str) -> None:
    outputs = "Y, Z" if "Y" in statements else "Z"
    text = f"def f({INPUTS}) -> ({outputs}) {{ {statements} }}"
    expected = notation.interpret(text, ARRAYS)["Z"]
    result = notation.compile(text, level="estimate")(**ARRAYS)
    np.testing.assert_array_equal(result["Z"] if "Y" in statements else result, expected)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("statements", PLACES)
def test_places_are_those_of_the_first_extremes(statements: str) -> None:
    check(statements)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("statements", BACKWARDS)
def test_sums_that_go_backwards_survive_optimisation(
    statements: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler_at("-O3"))
    check(statements)
