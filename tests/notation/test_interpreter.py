"""The meaning of statements, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from polysci import notation
from polysci.errors import SpecError
from polysci.notation import interpret

RANDOM = np.random.default_rng(5)
A, B = RANDOM.normal(size=(4, 6)), RANDOM.normal(size=(6, 5))
WHOLE = RANDOM.integers(-9, 9, size=(4, 6))


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("X(i,j) +=! A(i,k) * B(k,j)", A @ B),
        ("X(j) +=! A(i,j)", A.sum(0)),
        ("X(i) *=! A(i,j)", A.prod(1)),
        ("X(i) min=! A(i,j)", A.min(1)),
        ("X(i) max=! A(i,j)", A.max(1)),
        ("X(i) argmax=! A(i,j)", A.argmax(1)),
        ("X argmin=! A(i,j)", A.argmin()),
        ("X +=! A(i,i)", np.trace(A)),
        ("X(i) = A(i,i)", np.diag(A)),
        ("X(i,j) = A(i, 5-j) + i * 10", A[:, ::-1] + 10 * np.arange(4)[:, None]),
        ("X(i,j) = A(i,j) > 0 ? A(i,j) : 0.1 * A(i,j)", np.where(A > 0, A, 0.1 * A)),
        ("X(i,j) = exp(-A(i,j)) / A.1", np.exp(-A) / 6),
        ("X(i,j) = W(i,j) / 4", np.trunc(WHOLE / 4)),
        ("X(i,j) = W(i,j) % 4", np.fmod(WHOLE, 4)),
        ("X(i,j) = W(i,j) / 4.0", WHOLE / 4),
        ("X(i,j) = u8(W(i,j))", WHOLE.astype(np.uint8)),
        ("X(i,j) = int(A(i,j) * 3.0)", np.trunc(A * 3)),
        ("X(i) = A(i,2) where i in 1:3", [0, *A[1:3, 2]]),
        ("X(i,j) = A(W(i,j) % 2 == 0 ? i : 0, j)", np.where(WHOLE % 2 == 0, A, A[:1])),
    ],
)
def test_statements(statement: str, expected: np.ndarray) -> None:
    text = f"def f(double(M,K) A, double(K,N) B, int(M,K) W) -> (X) {{ {statement} }}"
    (x,) = interpret(text, {"A": A, "B": B, "W": WHOLE}).values()
    assert x.shape == np.shape(expected)
    np.testing.assert_allclose(x, expected, rtol=1e-14)


def test_statements_follow_each_other_and_keep_what_they_do_not_write() -> None:
    text = """
    def softmax(float(N, D) I) -> (O, most, total) {
        most(n) max=! I(n, d)
        e(n, d) = exp(I(n, d) - most(n))
        total(n) +=! e(n, d)
        O(n, d) = e(n, d) / total(n)
    }
    def f(float(N, D) I, float(N) add) -> (O, add) {
        O, most, total = softmax(I)
        O(n, d) = 0.0 where n in 1:2
        add(n) += I(n, d)
        add(n) max= 0.5
    }
    """
    add = RANDOM.normal(size=4)
    result = interpret(text, {"I": A, "add": add})
    e = np.exp(A - A.max(1, keepdims=True))
    expected = e / e.sum(1, keepdims=True)
    expected[1] = 0
    np.testing.assert_allclose(result["O"], expected, rtol=1e-14)
    np.testing.assert_allclose(result["add"], np.maximum(add + A.sum(1), 0.5), rtol=1e-14)


def test_shapes_must_fit_the_declarations() -> None:
    text = "def f(float(N) A, float(N) B) -> (C) { C(i) = A(i) * B(i) }"
    with pytest.raises(SpecError, match=r"B: N is 3, got shape \(4,\)"):
        interpret(text, {"A": np.ones(3), "B": np.ones(4)})
    with pytest.raises(SpecError, match=r"A: expected float32\(N\) A, got shape \(3, 1\)"):
        interpret(text, {"A": np.ones((3, 1)), "B": np.ones(4)})
    with pytest.raises(SpecError, match="B is missing"):
        interpret(text, {"A": np.ones(3)})
    call = "def g(float(N) A, float(M) B) -> (C) { C = f(A, B) }"
    with pytest.raises(SpecError, match=r"B: N is 3, but its shape is \(4,\)"):
        interpret(f"{text} {call}", {"A": np.ones(3), "B": np.ones(4)})


def test_a_computed_subscript_outside_its_axis_is_an_error() -> None:
    text = "def f(float(N) A, int(M) I) -> (B) { B(i) = A(I(i)) }"
    places = np.array([2, 0, 1])
    assert interpret(text, {"A": np.arange(3), "I": places})["B"].tolist() == [2, 0, 1]
    with pytest.raises(ValueError, match=r"I\(i\) takes values 0 to 3, but axis 0 has 0 to 2"):
        interpret(text, {"A": np.arange(3), "I": places + (places == 2)})
    guarded = text.replace("A(I(i))", "I(i) < 3 ? A(I(i)) : -1.0")
    result = interpret(guarded, {"A": np.arange(3), "I": np.array([3, 0, 1])})
    assert result["B"].tolist() == [-1, 0, 1]


@pytest.mark.exhaustive
def test_real_subscripts_are_rounded_towards_zero() -> None:
    text = "def f(float(N) A, float(M) F) -> (B) { B(i) = A(F(i)) }"
    a, f = np.arange(4, dtype="f4"), np.array([-0.5, 1.9, 3.5], "f4")
    assert notation.interpret(text, {"A": a, "F": f})["B"].tolist() == [0, 1, 3]
    function = notation.compile(text, level="estimate", check=True)
    assert function(a, f).tolist() == [0, 1, 3]
    with pytest.raises(ValueError, match="1 computed subscripts lie outside"):
        function(a, -2 * f[1:2])
