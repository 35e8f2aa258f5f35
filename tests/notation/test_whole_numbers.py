"""Whole and real numbers together: casts, quotients and comparisons are the interpreter's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from subprocess import run
from typing import Any

import numpy as np
import pytest

from polysci import notation
from polysci.numerics.dtypes import from_bf16
from tests.support.command import done

SIZE = 13
DRAW = np.random.default_rng(3)
INPUTS = (
    "int(N) W, long(N) L, u8(N) U, s8(N) S, uint32(N) X, size_t(N) Y, float(N) A, double(N) D, "
    "bool(N) P"
)
ARRAYS: Mapping[str, Any] = {
    "W": DRAW.integers(-999, 999, SIZE).astype("i4"),
    "L": DRAW.integers(-9, 10, SIZE).astype("i8"),
    "U": DRAW.integers(0, 255, SIZE).astype("u1"),
    "S": DRAW.integers(-128, 127, SIZE).astype("i1"),
    "X": DRAW.integers(0, 9, SIZE).astype("u4"),
    "Y": DRAW.integers(0, 9, SIZE).astype("u8"),
    "A": (DRAW.integers(-20, 20, SIZE) / 4).astype("f4"),
    "D": DRAW.integers(-20, 20, SIZE) / 4,
    "P": DRAW.integers(0, 2, SIZE).astype(bool),
}
VALUES = [
    "7 / 2", "-7 / 2", "7 / -2 + A(i)", "7 % -2 * A(i)", "7 / 2.0", "1 / 2 * A(i)", "!(7 / 8)",
    "W(i) > 0 ? 7 / 2 : 0.5", "(i - 4) / 3", "(i - 4) % 3", "N / 2", "(A(i) > 1) / -2",
    "-(N >= X(i))", "P(i) + P(i)", "i >= (-0.75 && U(i))", "max(bool(300), 2 >= D(i))",
    "u8(W(i)) / 2", "s8(W(i)) * 0.5", "uint32(W(i)) > 7 + i", "float(u8(300)) * A(i)",
    "uint16(A(i)) % 9", "bf16(S(i)) / 8", "bf16(A(i)) * 0.5", "bf16(-0.75 % 2)", "Y(i) % -2",
    "uint64(W(i)) / 2", "L(i) + 5000000000", "5000000000", "int(1e30)", "int(-1e400)",
    "int(A(i) * 1e30)", "2147483647 + 1", "pow(L(i), 2)", "pow(L(i), -1)", "W(i) / 0", "7 % 0",
    "uint64(A(i)) * 3 + Y(i)", "uint64(L(i)) > Y(i)", "max(uint64(W(i)), Y(i))",
    "uint64(A(i) * 1e18) / 3", "float(uint64(L(i)))", "U(0) == P(0) ? 1 : 0.5",
    "L(0) > 0 ? 1 : 5000000000",
]  # fmt: skip
OPERANDS = [f"{name}(i)" for name in ARRAYS] + ["i", "N", "1", "2", "7", "300", "-3", "2.5"]
CASTS = ["int", "long", "u8", "s8", "int16", "uint32", "bool", "float", "double"]


def value(draw: Random, depth: int) -> str:
    """A random expression; real numbers stay multiples of powers of two."""
    if depth == 0:
        return draw.choice(OPERANDS)
    left, right, other = (value(draw, depth - 1) for _ in range(3))
    comparison = draw.choice(["<", "<=", ">", ">=", "==", "!=", "&&", "||"])
    return draw.choice(
        [
            f"({left} / {draw.choice(['2', '-4', '2.0', '0'])})",
            f"({left} % {draw.choice(['2', '7', '-2'])})",
            f"({draw.choice(['7', '-9'])} {draw.choice('/%')} {draw.choice(['2', '-4'])})",
            f"({left} {draw.choice('+-*')} {right})",
            f"({left} {comparison} {right})",
            f"({left} > {right} ? {right} : {other})",
            f"{draw.choice(CASTS)}({left})",
            f"{draw.choice(['min', 'max'])}({left}, {right})",
            f"(-{left})",
        ]
    )


def check(values: Sequence[str]) -> None:
    """All in one function, each with an output of its own."""
    names = [f"Z{at}" for at in range(len(values))]
    pairs = zip(names, values, strict=True)
    body = "\n".join(f"{name}(i) = {text} where i in 0:N" for name, text in pairs)
    text = f"def f({INPUTS}) -> ({', '.join(names)}) {{ {body} }}"
    expected = notation.interpret(text, ARRAYS)
    function = notation.compile(text, {"N": SIZE}, level="estimate")
    results = function(**ARRAYS)
    for name, source in zip(names, values, strict=True):
        result, right = results[name], expected[name]
        if function.types[name] == "bf16":
            result, right = from_bf16(result), from_bf16(right)
        with np.errstate(all="ignore"):
            right = right.astype(result.dtype)
        np.testing.assert_allclose(result, right, rtol=1e-6, err_msg=source)


def test_numbers_of_several_types() -> None:
    check(VALUES)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(3))
def test_random_expressions(seed: int) -> None:
    draw = Random(seed)
    check([value(draw, 2) for _ in range(30)])


COMBINED = [
    "L(i) min= Y(j)", "W(i) += A(i) * 0.25", "W(i) +=! A(j) / 8", "W(i) max= L(i) * 5000000000",
    "U(i) min= W(j)",
    "U(i) *= A(j) where i in 2:5", "P(i) min= W(i)", "P(i) += P(j)", "P(i) max=! A(j) < 0",
    "S(i) max=! W(j)", "A(i) += W(j)", "L(i) += W(i) * 9", "X(i) += -A(i)",
    "S(i) argmax=! A(j)", "D(i) *= P(i)",
]  # fmt: skip


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(text, marks=() if at < 6 else pytest.mark.exhaustive)
        for at, text in enumerate(COMBINED)
    ],
)
def test_values_are_combined_before_they_are_of_the_target_s_type(statement: str) -> None:
    target = statement[0]
    text = f"def f({INPUTS}) -> ({target}) {{ {statement} where j in 0:7 }}"
    if "where i" in statement:
        text = text.replace("where j", ", j")
    right = notation.interpret(text, ARRAYS)[target]
    result = notation.compile(text, {"N": SIZE}, level="estimate")(**ARRAYS)
    np.testing.assert_allclose(result, right.astype(result.dtype), rtol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("fresh_cache")
def test_exported_code_has_the_same_values(tmp_path: Path) -> None:
    body = "\n".join(f"Z{at}(i) = {text} where i in 0:N" for at, text in enumerate(VALUES))
    outputs = ", ".join(f"Z{at}" for at in range(len(VALUES)))
    (tmp_path / "mixed.tc").write_text(f"def f({INPUTS}) -> ({outputs}) {{ {body} }}")
    words = ("--dim", f"N={SIZE}", "--level", "estimate", "-o", tmp_path / "out")
    done("compile", tmp_path / "mixed.tc", *words)
    ran = run(["make", "-C", tmp_path / "out", "check"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_random_expressions(seed: int) -> None:
    draw = Random(seed)
    check([value(draw, 3) for _ in range(30)])


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(
    "term", ["sqrt(2.0)", "sqrt(2)", "reciprocal(9)", "exp(1.0) / 3", "log(N)"]
)
def test_functions_of_numbers_are_as_exact_as_doubles(term: str) -> None:
    text = f"def f(double(N) D) -> (Z) {{ Z(i) = D(i) * {term} }}"
    wanted = notation.interpret(text, {"D": ARRAYS["D"]})["Z"]
    computed = notation.compile(text, {"N": SIZE}, level="estimate")(ARRAYS["D"])
    np.testing.assert_allclose(computed, wanted, rtol=1e-15)
