"""Rows of tables that data chooses, which are asked for before they are read."""

from __future__ import annotations

import numpy as np
import pytest

from polysci import notation
from tests.support.compiling import ISA

SUMS = "def f(float(E,D) T, int(B,L) I) -> (O) { O(b,d) +=! T(I(b,l), d) }"
ROWS = "def f(float(E,D) T, int(B) I) -> (O) { O(b,d) = 2 * T(I(b), d) }"
SECOND = "def f(float(B,E,D) T, int(B,L) I) -> (O) { O(b,d) +=! T(b, I(b,l), d) }"
SIZES = {"B": 9, "L": 5, "E": 5000, "D": 40}


def compiled(text: str, **sizes: int) -> notation.TensorFunction:
    wanted = {name: size for name, size in (SIZES | sizes).items() if f"{name}" in text}
    function = notation.compile(text, wanted, level="estimate", isa=ISA)
    assert isinstance(function, notation.TensorFunction)
    return function


def loops(function: notation.TensorFunction) -> str:
    text = function.network.code.files["f.c"]
    return text[text.index("f_s0(") : text.index("static void stages")]


@pytest.mark.sampled
@pytest.mark.parametrize("text", [SUMS, ROWS, SECOND])
def test_results_are_what_they_are_without(text: str) -> None:
    """The last turns ask for the last row; subscripts outside of the table are moved inside."""
    function = compiled(text, E=2000 if text == SECOND else 5000)
    assert loops(function).count("__builtin_prefetch") == 4
    extent = function.sizes["E"]
    random, (table, places) = np.random.default_rng(1), function.inputs
    at = random.integers(-extent, extent, [function.sizes[str(n)] for n in places.extents])
    at.flat[0], at.flat[-1] = 2**31 - 1, -(2**31)
    x = random.integers(-9, 9, [function.sizes[str(n)] for n in table.extents]).astype("f4")
    inside = np.clip(np.where(at < 0, at + extent, at), 0, extent - 1)
    if text == SECOND:
        wanted = x[np.arange(len(x))[:, None], inside].sum(1)
    else:
        wanted = 2 * x[inside] if text == ROWS else x[inside].sum(1)
    assert np.array_equal(function(x, at.astype(np.int32)), wanted)


@pytest.mark.exhaustive
def test_how_far_ahead() -> None:
    """4 KiB, 16 turns or one; no subscript behind the last one is read."""
    assert "ps_least(5 * i0 + r0 + 16, 44)" in loops(compiled(SUMS))
    wide = loops(compiled(SUMS, D=600, L=200))
    assert "j0 += 256" in wide and "ps_least(200 * i0 + r0 + 4, 1799)" in wide
    assert "ps_least(i0 + 6, 8)" in loops(compiled(ROWS, D=160))
    long = loops(compiled(ROWS, D=3000))
    assert "ps_least(i0 + 1, 8)" in long and long.count("__builtin_prefetch") == 17


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (SUMS, {"E": 100}),  # L2 holds it
        ("def f(float(E,D) T, int(D) I) -> (O) { O(b,d) = T(I(d), d) where b in 0:9 }", {}),
        ("def f(float(E,D) T, int(E) J, int(B,L) I) -> (O) { O(b,d) +=! T(J(I(b,l)), d) }", {}),
    ],
)  # fmt: skip
def test_what_is_not_asked_for(text: str, sizes: dict[str, int]) -> None:
    """Small tables, no whole rows, and what other places of data would have to be read for."""
    assert "__builtin_prefetch" not in loops(compiled(text, **sizes))
