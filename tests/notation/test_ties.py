"""Gradients where values are equal, factors 0 or slopes infinite: one rule, never a sum."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from polysci import notation
from tests.support.random_programs import OPERANDS, choose_first, random_program

# Statements of A and B to Z, their values, and the gradients of A and B where that of Z is 1.
CASES = [
    ("Z max=! A(i) + 0.0 * float(l) where l in 0:5", [1, 3, 2], [0, 0, 0], [0, 1, 0], [0, 0, 0]),
    ("Z max=! A(i) where l in 2:5, j in 0:2", [3, 3, 2], [0, 0, 0], [1, 0, 0], [0, 0, 0]),
    ("Z min=! A(i) * B(j)", [2, 1, 2], [3, 3, 3], [0, 3, 0], [1, 0, 0]),
    ("Z min=! A(i + 1) - A(0) where i in 0:2", [1, 1, 1], [0, 0, 0], [-1, 1, 0], [0, 0, 0]),
    ("Z(i) max=! A(i) where l in 0:3", [1, 3, 2], [0, 0, 0], [1, 1, 1], [0, 0, 0]),
    ("Z(i) max=! A(0) where i in 0:3, l in 0:4", [1, 0, 0], [0, 0, 0], [3, 0, 0], [0, 0, 0]),
    ("Z(i) = max(A(i), B(i))", [1, 3, 2], [1, 2, 3], [1, 1, 0], [0, 0, 1]),
    ("Z(i) = min(A(i), B(i))", [1, 3, 2], [1, 2, 3], [1, 0, 1], [0, 1, 0]),
    ("Z(i) = max(A(i), A(i)) + relu(B(i))", [1, 3, 2], [0, -1, 1], [1, 1, 1], [0, 0, 1]),
    ("Z(i) = abs(A(i)) + floor(B(i)) + ceil(B(i))", [-1, 0, 2], [1, 1, 1], [-1, 0, 1], [0, 0, 0]),
    ("Z(i) = float(int(A(i))) * B(i) + float(A(i) >= B(i))", [1, 3, 2], [1, 2, 3], [0, 0, 0],
     [1, 3, 2]),
    ("Z(i) = A(i) * float(B(i) == B(i)) + sign(B(i))", [1, 3, 2], [1, 2, 3], [1, 1, 1], [0, 0, 0]),
    ("Z *=! A(i)", [2, 3, 5], [0, 0, 0], [15, 10, 6], [0, 0, 0]),
    ("Z *=! A(i)", [2, 0, 5], [0, 0, 0], [0, 10, 0], [0, 0, 0]),
    ("Z *=! A(i)", [0, 0, 5], [0, 0, 0], [0, 0, 0], [0, 0, 0]),
    ("Z *=! A(i) where l in 0:2", [2, 0, 5], [0, 0, 0], [0, 0, 0], [0, 0, 0]),
    ("Z(i) *=! A(i) - B(j)", [1, 4, 5], [1, 2, 3], [2, 11, 26], [-10, -11, -18]),
    # What is not chosen adds nothing, however steep.
    ("Z max=! sqrt(A(i))", [0, 4, 1], [0, 0, 0], [0, 0.25, 0], [0, 0, 0]),
    ("Z(i) = max(sqrt(A(i)), 1.0) + min(log(B(i)), -9.0)", [0, 4, 1], [0, 1, 1], [0, 0.25, 0.5],
     [np.inf, 0, 0]),
    ("Z(i) = B(i) != 0.0 ? A(i) / B(i) : A(i)", [1, 4, 1], [0, 2, 1], [1, 0.5, 1], [0, -1, -1]),
    ("Z(i) = sqrt(A(i)) + A(i) / B(i)", [0, 4, 1], [1, 0, 2], [np.inf, np.inf, 1],
     [0, -np.inf, -0.25]),
    ("Z(i) = A(i) / B(i)", [1e-30, 1, 1], [1e-25, 1, 1e25], [1e25, 1, 1e-25], [-1e20, -1, 0]),
    ("Z(i) = A(i - i) + A(i - i) where i in 0:3", [1, 4, 1], [0, 0, 0], [6, 0, 0], [0, 0, 0]),
]  # fmt: skip


def gradients(statements: str, a: list[float], b: list[float], kind: str) -> list[np.ndarray]:
    """Those of A and B that the interpreter and the compiled function compute."""
    text = f"def f({kind}(3) A, {kind}(3) B) -> (Z) {{ {statements} }}"
    dtype = {"float": np.float32, "double": np.float64}[kind]
    values = {"A": np.array(a, dtype), "B": np.array(b, dtype)}
    values["d_Z"] = np.ones(notation.interpret(text, values)["Z"].shape, dtype)
    compiled = notation.compile(text, level="estimate").grad("A", "B")(**values)
    made = notation.interpret(notation.grad(text, "A", "B"), values)
    for name, value in made.items():
        np.testing.assert_allclose(compiled[name], value, rtol=1e-6, atol=1e-30, err_msg=name)
    return [*made.values()]


@pytest.mark.sampled
@pytest.mark.parametrize(
    "case", [c if at in (0, 2, 13) else pytest.param(c, marks=pytest.mark.exhaustive)
             for at, c in enumerate(CASES)], ids=lambda case: case[0],
)  # fmt: skip
def test_of_equal_values_the_first_has_the_gradient(
    case: tuple[str, list[float], list[float], list[float], list[float]],
) -> None:
    statements, a, b, *expected = case
    for result, wanted in zip(gradients(statements, a, b, "float"), expected, strict=True):
        np.testing.assert_allclose(result, np.array(wanted, float), rtol=1e-6, atol=1e-20)


def with_gradients(seed: int) -> tuple[str, dict[str, np.ndarray], np.ndarray]:
    """A random program, small whole numbers for its inputs, and the gradient of its result."""
    text, random = random_program(Random(seed), ties=True), np.random.default_rng(seed)
    values = {name: random.integers(-1, 2, shape) * 1.0 for name, shape in OPERANDS.items()}
    shape = notation.interpret(text, values)["Z"].shape
    return text, values, random.integers(-3, 4, shape) * 1.0


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(120))
def test_random_programs_of_equal_values(seed: int) -> None:
    """Beside differences of a program in which the first of equal extremes is apart."""
    text, values, weights = with_gradients(seed)
    apart, step = choose_first(text, 1e-3), 1e-7
    np.testing.assert_array_equal(
        notation.interpret(apart, values)["Z"], notation.interpret(text, values)["Z"]
    )
    made = notation.interpret(notation.grad(text), {**values, "d_Z": weights})
    random = np.random.default_rng(seed)
    for name, value in values.items():
        direction = random.normal(size=value.shape)
        low, high = (
            np.sum(weights * notation.interpret(apart, {**values, name: moved})["Z"])
            for moved in (value - step * direction, value + step * direction)
        )
        slope, limit = (high - low) / (2 * step), 1e-5 * (1 + abs(high - low) / step + abs(high))
        assert abs(slope - np.sum(made[f"d_{name}"] * direction)) < limit, text


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1000, 1020))
def test_compiled_gradients_of_equal_values(seed: int) -> None:
    text, values, weights = with_gradients(seed)
    made = notation.interpret(notation.grad(text), {**values, "d_Z": weights})
    compiled = notation.compile(text, level="estimate").grad()(**values, d_Z=weights)
    for name, value in made.items():
        np.testing.assert_array_equal(compiled[name], value, err_msg=text)


def test_no_gradient_is_lost_where_values_are_rounded() -> None:
    """An extreme that is computed once more may differ in its last bit."""
    text = """def f(float(N) A, float(M) V, float(M) B) -> (Z) {
        Z(m) max=! tanh(A(k) * V(m) + 0.1 * A(k)) * exp(V(m)) + B(m) * A(0)
    }"""
    random = np.random.default_rng(0)
    a, v, b = (random.normal(size=size).astype("f4") for size in (37, 29, 29))
    made = notation.compile(text, level="estimate").grad("B")(a, v, b, d_Z=np.ones(29, "f4"))
    assert np.array_equal(made, np.full(29, a[0]))


@pytest.mark.exhaustive
def test_gradients_of_products_are_those_of_autograd() -> None:
    torch = pytest.importorskip("torch")
    random, text = np.random.default_rng(4), "def f(double(M,K) A) -> (Z) { Z(m) *=! A(m,k) }"
    a, d_z = random.integers(-1, 3, (40, 4)) * 1.0, random.normal(size=40)
    leaf = torch.tensor(a, requires_grad=True)
    leaf.prod(1).backward(torch.tensor(d_z))
    backward = notation.grad(text, sizes={"M": 40, "K": 4})
    np.testing.assert_allclose(
        notation.interpret(backward, {"A": a, "d_Z": d_z})["d_A"], leaf.grad.numpy(), rtol=1e-12
    )
