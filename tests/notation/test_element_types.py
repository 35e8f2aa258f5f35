"""The rules of element types: docs, interpreter, compiled programs and exported C agree."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from random import Random
from subprocess import run
from typing import Any

import numpy as np
import pytest

from polysci import notation
from polysci.numerics.dtypes import from_bf16, to_bf16
from tests.support.command import done
from tests.support.scalar_values import NAMES, convert, draw_value, value_of

DOCS = Path(__file__).parents[2] / "docs" / "howto" / "notation.md"
SIZE = 11


def arrays(seed: int) -> dict[str, np.ndarray]:
    """One of each element type, called as the type is in capital letters."""
    random = np.random.default_rng(seed)
    made = dict[str, np.ndarray]()
    for name, kind in NAMES.items():
        whole = random.integers(0 if kind[0] in "ub" else -9, 10, SIZE)
        if kind in ("float16", "bf16", "float32", "float64"):
            values = (whole / 4).astype("f4")
            made[name] = to_bf16(values) if kind == "bf16" else values.astype(kind)
        else:
            made[name] = whole.astype(kind)
    return made


def declarations() -> str:
    return ", ".join(f"{kind}(N) {name}" for name, kind in NAMES.items())


def results(values: list[str], inputs: dict[str, np.ndarray]) -> list[tuple[str, Any, Any]]:
    """Element type, result of the compiled function and of the interpreter, of each value."""
    outputs = [f"Z{at}" for at in range(len(values))]
    body = "\n".join(f"Z{at}(i) = {value} where i in 0:N" for at, value in enumerate(values))
    text = f"def f({declarations()}) -> ({', '.join(outputs)}) {{ {body} }}"
    function = notation.compile(text, {"N": SIZE}, level="estimate")
    compiled, interpreted = function(**inputs), notation.interpret(text, inputs)
    made = []
    for name in outputs:
        pair = compiled[name], interpreted[name]
        if function.types[name] == "bf16":
            pair = from_bf16(pair[0]), from_bf16(pair[1])
        made.append((function.types[name], *pair))
    return made


def check(terms: list[Any], seed: int) -> None:
    """Random values beside what the rules say, number by number."""
    inputs = arrays(seed)
    numbers = {
        name: from_bf16(array) if NAMES[name] == "bf16" else array for name, array in inputs.items()
    }
    for term, (dtype, *made) in zip(terms, results([t[0] for t in terms], inputs), strict=True):
        text, kind, _ = term
        assert dtype == kind, text
        with np.errstate(all="ignore"):
            expected = [
                value_of(term, {n: a[i] for n, a in numbers.items()}, i) for i in range(SIZE)
            ]
        for result in made:
            np.testing.assert_allclose(
                np.asarray(result, float), np.array(expected, float), rtol=2e-6, err_msg=text
            )


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(2))
def test_random_values_follow_the_rules(seed: int) -> None:
    random = Random(seed)
    check([draw_value(random, 2) for _ in range(40)], seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(100, 112))
def test_many_random_values_follow_the_rules(seed: int) -> None:
    random = Random(seed)
    check([draw_value(random, 3) for _ in range(40)], seed)


def documented_pairs() -> dict[tuple[str, str], str]:
    """The table of the docs: the type of ``a + b`` by those of a and b."""
    rows = re.findall(r"^\| (`.*) \|$", DOCS.read_text(), re.MULTILINE)
    cells = [[re.findall(r"`(\w+)`", cell) for cell in row.split("|")] for row in rows]
    kinds = [row for row in cells if len(row) == 6 and all(row)]
    columns = [row[0] for row in kinds]
    return {
        (a, b): row[1 + at][0]
        for row in kinds for at, column in enumerate(columns) for a in row[0] for b in column
    }  # fmt: skip


@pytest.mark.exhaustive
def test_pairs_of_types_are_as_documented() -> None:
    words, types = documented_pairs(), dict(zip(NAMES.values(), NAMES, strict=True))
    alike = {"half": "float16", "float": "float32", "double": "float64"}
    pairs = {(alike.get(a, a), alike.get(b, b)): alike.get(c, c) for (a, b), c in words.items()}
    assert {*pairs} == {*product(types, types)}
    sums = [f"{types[a]}(i) - {types[b]}(i)" for a, b in pairs]
    made = results(sums, arrays(0))
    assert [dtype for dtype, *_ in made] == [*pairs.values()]


# Values of iterator i = 3 -> what they are; each rule of the docs has a row.
RULES: dict[str, float] = {
    "uint32(3) - uint32(5)": -2,  # in int64
    "uint8(200) + uint8(100)": 300,  # in int32
    "uint64(3) - uint64(5)": 2.0**64 - 2,
    "2147483647 + int(i) - 2": -(2**31),
    "i * 3000000000": 9_000_000_000,
    "int(i - 2147483651) / -1": -(2**31),
    "int(i) / 0": 0,
    "int(i) % 0": 0,
    "(i - 10) / 2": -3,
    "(i - 10) % 4": -3,
    "(i - 10) % -4": -3,
    "float(i) / 0.0": np.inf,
    "-7.5 % float(i)": -1.5,
    "int(float(i) * 1e30)": 2**31 - 1,
    "int(float(i) / 0.0)": 2**31 - 1,
    "long(-1e30 * float(i))": -(2**63),
    "int(sqrt(2.0 - float(i)))": 0,  # of a NaN
    "u8(float(i) * 100.0)": 44,
    "s8(i + 197)": -56,
    "uint64(0.0 - float(i))": 2.0**64 - 3,
    "bool(float(i) * 0.1)": 1,
    "bool(sqrt(2.0 - float(i)))": 1,
    "(i > 2) + (i > 1)": 2,
    "-(i > 2)": -1,
    "half(float(i) + 2050.0)": 2052,  # ties to even
    "half(float(i) * 30000.0)": np.inf,
    "half(2051.0) + float(i)": 2055,
    "bf16(float(i) + 256.0)": 260,
    "bf16(float(i) + 256.0) + 1.0": 261,
    "i > 2 ? 2049 : H(i)": 2049,  # no half has it: a float
    "i > 2 ? 257 : G(i)": 257,
    "i > 2 ? W(i) - W(i) - 1 : Y(i)": 2.0**64 - 1,
    "1e999": np.inf,
    "-1e999 * float(i)": -np.inf,
    "9007199254740993 - i > 9007199254740989": 1,  # no double has it
    "9223372036854775807 - i < 0": 0,
    "7 / 2": 3,
    "7 / 2.0": 3.5,
}


@pytest.mark.exhaustive
def test_rules_for_numbers_out_of_range() -> None:
    for text, (dtype, *made) in zip(RULES, results([*RULES], arrays(0)), strict=True):
        for result in made:
            assert float(np.asarray(result, float)[3]) == RULES[text], (text, dtype, result)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("fresh_cache")
def test_exported_code_follows_them(tmp_path: Path) -> None:
    random = Random(5)
    values = [*RULES, *(draw_value(random, 2)[0] for _ in range(20))]
    outputs = ", ".join(f"Z{at}" for at in range(len(values)))
    body = "\n".join(f"Z{at}(i) = {value} where i in 0:N" for at, value in enumerate(values))
    (tmp_path / "f.tc").write_text(f"def f({declarations()}) -> ({outputs}) {{ {body} }}")
    words = ("--dim", f"N={SIZE}", "--level", "estimate", "-o", tmp_path / "out")
    done("compile", tmp_path / "f.tc", *words)
    ran = run(["make", "-C", tmp_path / "out", "check"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("kind", ["half", "bf16"])
def test_tensors_of_16_bits_hold_rounded_numbers(kind: str) -> None:
    """Also where they change, and for the statements that read them behind that."""
    text = f"""def f({kind}(N) A, float(N) B) -> (A, T, Z) {{
        T(i) = {kind}(B(i) * 1.001)
        A(i) += B(i)
        A(i) = A(i) * 1.01 where i in 1:5
        Z(i) = (A(i) + T(i)) * 3.0
    }}"""
    random = np.random.default_rng(2)
    a, b = random.normal(size=(2, 40)).astype("f4")
    given = to_bf16(a) if kind == "bf16" else a.astype("f2")

    def rounded(x: np.ndarray) -> np.ndarray:
        return from_bf16(to_bf16(x)) if kind == "bf16" else x.astype("f2").astype("f4")

    t, new = rounded(b * np.float32(1.001)), rounded(rounded(a) + b)
    new[1:5] = rounded(new[1:5] * np.float32(1.01))
    function = notation.compile(text, {"N": 40}, level="estimate")
    for made in (function(given, b), notation.interpret(text, {"A": given, "B": b})):
        for name, expected in (("A", new), ("T", t)):
            result = made[name]
            assert result.dtype == (np.uint16 if kind == "bf16" else np.float16)
            result = from_bf16(result) if kind == "bf16" else result
            np.testing.assert_array_equal(result.astype("f4"), expected, err_msg=name)
        np.testing.assert_allclose(made["Z"], (new + t) * 3, rtol=1e-6)


def test_places_are_counted_along_iterators_in_the_order_of_the_value() -> None:
    text = "def f(float(M,K) A) -> (P, Q) { P argmax=! A(m,k)  Q argmax=! A(m,k) + 0.0 * B(k)}"
    text = text.replace(" + 0.0 * B(k)", " where k in 0:A.1, m in 0:A.0").replace("A.1", "K")
    text = text.replace("A.0", "M").replace("}", "  R argmax=! 0.0 * k + A(m,k) }")
    text = text.replace("(P, Q)", "(P, Q, R)")
    a = np.zeros((3, 5), "f4")
    a[1, 2] = a[2, 1] = 1
    for made in (notation.compile(text, level="estimate")(a), notation.interpret(text, {"A": a})):
        assert [int(made[name]) for name in "PQR"] == [1 * 5 + 2, 1 * 5 + 2, 1 * 3 + 2]


def test_infinite_numbers_stay_in_texts() -> None:
    text = (
        "def f(float(N) A) -> (Z) { M max=! A(i)  Z(i) = max(A(i), -1e999) + (M < 1e999 ? 1 : 2) }"
    )
    (parsed,) = notation.parse(text)
    assert notation.parse(str(parsed)) == (parsed,)
    made = notation.interpret(notation.grad(text, sizes={"N": 2}), {"A": [1, 2], "d_Z": [1, 1]})
    assert made["d_A"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("bf16", np.ones(2, "f4"), r"A: expected dtype uint16 \(the bits of bf16; .*got float32"),
        ("bf16", [1, 2], "A: expected dtype uint16 .*got int64"),
        ("half", np.ones(2, "u2"), "A: expected dtype float16 or numbers, got uint16"),
        ("int", [0.5, 1], "A: expected values of int32, got float64 with others"),
        ("u8", [0, 256], "A: expected values of uint8, got int64 with others"),
        ("bool", [0, 2], "A: expected values of bool, got int64 with others"),
        ("float", ["a", "b"], "A: expected numbers, got dtype <U1"),
        ("float", [1j, 2], "A: expected numbers, got dtype complex128"),
    ],
)
def test_values_that_a_type_lacks(kind: str, given: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        notation.interpret(f"def f({kind}(N) A) -> (Z) {{ Z(i) = A(i) }}", {"A": given})


def test_another_library_s_bf16_and_numbers() -> None:
    text = "def f(bf16(N) A, bf16 s) -> (Z, B) { Z(i) = A(i) * s  B(i) = A(i) }"
    bits = to_bf16(np.array([0.1, 3.0], "f4"))
    made = notation.interpret(text, {"A": bits, "s": 0.1})
    compiled = notation.compile(text, level="estimate")(A=bits, s=0.1)
    np.testing.assert_allclose(compiled["Z"], made["Z"], rtol=1e-6)
    assert np.array_equal(made["B"], bits) and np.array_equal(compiled["B"], bits)
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    other = notation.interpret(text, {"A": bits.view(bfloat16), "s": 0.1})
    assert np.array_equal(other["B"], bits) and np.array_equal(other["Z"], made["Z"])
    assert convert(0.1, "float64", "bf16") == float(from_bf16(to_bf16(np.float32(0.1))))
