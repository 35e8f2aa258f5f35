"""Compiled comprehensions against the interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from polysci import notation
from polysci.errors import SpecError
from polysci.numerics.dtypes import from_bf16, to_bf16

RANDOM = np.random.default_rng(7)
INPUTS = (
    "float(M,K) A, float(K,N) B, float(M) V, int(M,K) W, u8(M,K) U, s8(K,N) S, double(M,K) D, "
    "half(M,K) H, bf16(K,N) G, float(9) C, float(T,P,H1,W1) X, float(Q,P,R,R) Y, bool(M) L"
)
SIZES = {"M": 5, "K": 7, "N": 19, "T": 2, "P": 3, "H1": 8, "W1": 9, "Q": 17, "R": 3}
ARRAYS: Mapping[str, Any] = {
    "A": RANDOM.integers(-3, 4, (5, 7)).astype("f4"),
    "B": RANDOM.integers(-3, 4, (7, 19)).astype("f4"),
    "V": RANDOM.integers(-3, 4, 5).astype("f4"),
    "W": RANDOM.integers(-9, 9, (5, 7)).astype("i4"),
    "U": RANDOM.integers(0, 255, (5, 7)).astype("u1"),
    "S": RANDOM.integers(-128, 127, (7, 19)).astype("i1"),
    "D": RANDOM.integers(-3, 4, (5, 7)).astype("f8"),
    "H": RANDOM.integers(-3, 4, (5, 7)).astype("f2"),
    "G": to_bf16(RANDOM.integers(-3, 4, (7, 19)).astype("f4")),
    "C": RANDOM.integers(-3, 4, 9).astype("f4"),
    "X": RANDOM.integers(-3, 4, (2, 3, 8, 9)).astype("f4"),
    "Y": RANDOM.integers(-3, 4, (17, 3, 3, 3)).astype("f4"),
    "L": RANDOM.integers(0, 2, 5).astype(bool),
}
STATEMENTS = [
    "Z(m,n) +=! A(m,k) * B(k,n)",
    "Z(n,m) +=! 2 * A(m,k) * B(k,n) * 0.5",
    "Z(m,n) +=! A(m,k) * B(k,n) * V(m)",
    "Z(m,n) +=! A(m,k) * A(n,k)",
    "Z(m) +=! A(m,k) * A(m,k)",
    "Z +=! A(m,k)",
    "Z(m,n) +=! A(m,k) * B(k,n) Z(m,n) += V(m) Z(m,n) max= 0.0 where m in 1:3, n in 4:9",
    "Z(b,q,h,w) +=! X(b,p,h+r,w+s) * Y(q,p,r,s)",
    "Z(b,q,h,w) +=! X(b,p,2*h+r,2*w+s) * Y(q,p,r,s)",
    "Z(b,q,h,w) +=! h+r >= 1 && h+r < 9 && w+s >= 1 && w+s <= 9 ? X(b,p,h+r-1,w+s-1) * Y(q,p,r,s)"
    " : 0.0 where h in 0:H1, w in 0:W1, r in 0:R, s in 0:R",
    "Z(b,p,h,w) max=! X(b,p,2*h+r,2*w+s) where r in 0:2, s in 0:2",
    "Z(i) +=! C(i+2*k) where k in 0:3",
    "Z(m) *=! A(m,k)",
    "Z(m,k) = A(m,k) > 0 ? A(m,k) : A(m,k) * 0.25",
    "Z(m) min=! W(m,k)  I(m) argmin=! W(m,k)  Z(m) += I(m)",
    "I(m) argmax=! A(m,k)  Z(m) = A(m, I(m))",
    "Z(m,k) = A(4-m, k) + m * 10 + k / 2 - k % 3",
    "Z(m,k) = W(m,k) / 2 + W(m,k) % 3",
    "Z(m,k) = W(m,k) / 2.0",
    "Z(m,k) = U(m,k)",
    "Z(m,n) +=! U(m,k) * S(k,n)",
    "Z(m,k) = float(U(m,k)) * 0.5",
    "Z(m,k) = s8(W(m,k) * 100)",
    "Z(m,n) +=! D(m,k) * B(k,n)",
    "Z(m,k) = H(m,k)",
    "Z(m,k) = H(m,k) * A(m,k)",
    "Z(k,n) = G(k,n)",
    "Z(m,n) +=! H(m,k) * G(k,n)",
    "Z(m,k) = min(A(m,k), V(m)) + fmax(W(m,k), 2) + abs(A(m,k)) + square(A(m,k))",
    "Z(m) = L(m) && V(m) > 0 || !(V(m) == 2)",
    "Z(m) = V(W(m,0) % 2 == 0 ? m : 0)",
    "Z(i) = C(i/2) where i in 3:11",
    "Z(m,n) = m == n || m > n ? 1.0 : 0.0 where m in 0:4, n in 0:6",
    "Z(m) = float(A.1) + K where m in 0:M",
]


@pytest.mark.sampled
@pytest.mark.parametrize("statement", STATEMENTS)
def test_results_are_those_of_the_interpreter(statement: str) -> None:
    text = f"def f({INPUTS}) -> (Z) {{ {statement} }}"
    expected = notation.interpret(text, ARRAYS)["Z"]
    function = notation.compile(text, SIZES, level="estimate")
    result = function(**ARRAYS)
    if function.types["Z"] == "bf16":
        result, expected = from_bf16(result), from_bf16(expected)
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result.astype(expected.dtype), expected)


def test_functions_of_real_numbers() -> None:
    names = [
        "exp",
        "sigmoid",
        "tanh",
        "erf",
        "gelu",
        "silu",
        "softplus",
        "log2",
        "exp2",
        "rsqrt",
        "exp10",
        "mish",
        "sqrt",
    ]
    total = " + ".join(f"{name}(A(i))" for name in names)
    text = f"def f(float(N) A) -> (B) {{ B(i) = fma({total}, pow(A(i), 1.5), fdim(A(i), 1)) }}"
    a = RANDOM.uniform(0.5, 2, 37).astype("f4")
    result = notation.compile(text, {"N": 37}, level="estimate")(a)
    np.testing.assert_allclose(result, notation.interpret(text, {"A": a})["B"], rtol=1e-5)


@pytest.mark.exhaustive
def test_several_outputs_and_inputs_that_are_outputs() -> None:
    text = """
    def norm(float(N, D) I, float(N) seen) -> (O, seen, mean) {
        mean(n) +=! I(n, d) / D
        var(n) +=! (I(n, d) - mean(n)) * (I(n, d) - mean(n)) / D
        O(n, d) = (I(n, d) - mean(n)) * rsqrt(var(n) + 1e-5)
        seen(n) += mean(n)
    }
    """
    i, seen = RANDOM.normal(size=(6, 33)).astype("f4"), np.ones(6, "f4")
    function = notation.compile(text, {"N": 6, "D": 33}, level="estimate", threads=2)
    result, expected = function(i, seen), notation.interpret(text, {"I": i, "seen": seen})
    assert [*result] == ["O", "seen", "mean"] and np.all(seen == 1)
    for name, value in expected.items():
        np.testing.assert_allclose(result[name], value, rtol=2e-5, atol=2e-6)


@pytest.mark.exhaustive
def test_computed_subscripts_are_checked_where_that_is_asked_for() -> None:
    text = """
    def 2LUT(float(E,D) table, int(N,L) at) -> (O) { O(n,d) +=! table(at(n,l), d) }
    """
    table = RANDOM.integers(-3, 4, (11, 16)).astype("f4")
    at = RANDOM.integers(0, 11, (4, 5)).astype("i4")
    sizes = {"E": 11, "D": 16, "N": 4, "L": 5}
    checked, plain = (
        notation.compile(text, sizes, level="estimate", check=check) for check in (True, False)
    )
    for function in (checked, plain):
        np.testing.assert_array_equal(function(table, at), table[at].sum(1))
    at[1, 2] = 11
    with pytest.raises(SpecError, match=r"1 computed subscripts lie outside(.|\n)*at"):
        checked(table, at)
    np.testing.assert_array_equal(plain(table, at), table[np.minimum(at, 10)].sum(1))


@pytest.mark.exhaustive
def test_scalars_are_arguments_or_sizes() -> None:
    text = "def f(float(N) A, int s, float t) -> (B) { B(i) = A(s*i) * t where i in 0:4 }"
    a, t = np.arange(12, dtype="f4"), np.array(2, "f4")
    run = notation.compile(text, {"N": 12}, level="estimate")
    assert run(a, np.array(3, "i4"), t).tolist() == [0, 6, 12, 18]
    fixed = notation.compile(
        text.replace("where i in 0:4", ""), {"N": 12, "s": 5}, level="estimate"
    )
    assert fixed(a, t).tolist() == [0, 10, 20]
    assert [tensor.name for tensor in fixed.inputs] == ["A", "t"]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"N": 4, "M": []}, r"sizes: M=\[\]: expected a whole number"),
        ({"N": 4, "M": 0}, "f: M=0: expected a positive size"),
        ({"N": 4, "M": 3, "K": 2}, "f: K=2: no shape variable or scalar"),
        ({"N": 4, "M": 3.0}, "sizes: M=3.0: expected a whole number"),
        ({"N": 4, "M": 2**60}, "i takes values|f: B: too many elements"),
        ({"N": 4, "M": 9}, "i takes values 0 to 8, but axis 0 has 0 to 3"),
    ],
)
def test_sizes_that_do_not_fit(sizes: dict[str, Any], message: str) -> None:
    text = "def f(float(N) A, float(M) B) -> (C) { C(i) = A(i) where i in 0:M }"
    with pytest.raises(SpecError, match=message):
        notation.compile(text, sizes)


def test_arguments_that_do_not_fit() -> None:
    text = "def f(float(N) A, float(N) B) -> (C) { C(i) = A(i) + B(i) }"
    run, a = notation.compile(text, {"N": 4}, level="estimate"), np.ones(4, "f4")
    assert run(a, B=a).tolist() == [2] * 4
    for call in (lambda: run(a, a, a), lambda: run(a, A=a), lambda: run(a.astype("f8"), a)):
        with pytest.raises(TypeError):
            call()
    for call in (lambda: run(a), lambda: run(a, a[:3])):
        with pytest.raises(ValueError):
            call()


@pytest.mark.exhaustive
def test_sizes_that_stay_free() -> None:
    text = "def f(float(N) A, float(N,M) B, float s) -> (C) { C(i) +=! s * A(i) * B(i,j) }"
    a, s = RANDOM.integers(-3, 4, 6).astype("f4"), np.array(2, "f4")
    b = RANDOM.integers(-3, 4, (6, 5)).astype("f4")
    run = notation.compile(text, {"M": [2, 5]}, level="estimate")
    np.testing.assert_array_equal(run(a, b, s), 2 * a * b.sum(1))
    np.testing.assert_array_equal(run(a[:3], b[:3, :2].copy(), s=s), 2 * a[:3] * b[:3, :2].sum(1))
    run(a, b, s)
    assert [*run.functions] == [(5, 6), (2, 3)] and run.at({"M": 5, "N": 6}).sizes["M"] == 5
    np.testing.assert_array_equal(run.grad("A")(a, b, s, d_C=a), 2 * a * b.sum(1))
    for fault, message in (
        (lambda: run(a, b[:, :3].copy(), s), r"f: M=3: not in \[2, 5\]"),
        (lambda: run(a[:2], b, s), r"B: N is 2, got shape \(6, 5\)"),
        (lambda: run(a, b), "s is missing"),
    ):
        with pytest.raises(SpecError, match=message):
            fault()
    ahead = notation.compile(text, {"N": [1, 3], "M": 2, "s": 3}, level="estimate")
    assert [*ahead.functions] == [(2, 1, 3), (2, 3, 3)]
    np.testing.assert_array_equal(ahead(a[:3], b[:3, :2].copy()), 3 * a[:3] * b[:3, :2].sum(1))


PROGRAMS = {
    "2LUT": """def f(float(E,D) T, int(B,L) I, float(F,D) U, int(B,P) J) -> (O, Q) {
        O(b,d) +=! T(I(b,l), d)  Q(b,d) +=! U(J(b,l), d)
    }""",
    "Kronecker": """def f(float(D,N) U, float(E,N) V, float(F,N) W, float(M,N,N,N) X) -> (Y) {
        P(m,a,b,f) +=! X(m,a,b,c) * W(f,c)
        Q(m,a,e,f) +=! P(m,a,b,f) * V(e,b)
        Y(m,d,e,f) +=! Q(m,a,e,f) * U(d,a)
    }""",
    "WaveNet": """def f(float(B,C,T) X, float(C,C,2) F, float(C,C,2) G, float(C,C) R) -> (Y, H) {
        A(b,m,t) +=! X(b,c,t+2*k) * F(m,c,k)
        D(b,m,t) +=! X(b,c,t+2*k) * G(m,c,k)
        H(b,m,t) = max(A(b,m,t), 0.0) * min(D(b,m,t), 1.0)
        P(b,m,t) +=! H(b,c,t) * R(m,c)
        Y(b,m,t) = P(b,m,t) + X(b,m,t+2)
    }""",
    "values and places": """def f(float(N,D) X) -> (V, I, W, J) {
        V(n) max=! X(n,d)  I(n) argmax=! X(n,d)  W(d) min=! X(n,d)  J(d) argmin=! X(n,d)
    }""",
    "moments": """def f(float(N,C,H,W) X) -> (S, Q, Y) {
        S(n,c) +=! X(n,c,h,w)
        Q(n,c) +=! square(X(n,c,h,w))
        Y(n,c,h,w) = X(n,c,h,w) * S(n,c) - Q(n,c)
    }""",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, threads: int) -> None:
    text, extents = PROGRAMS[name], dict(zip("BCDEFHLMNPTUVW", range(3, 17), strict=True))
    (tree,) = notation.parse(text)
    sizes = {variable: extents[variable] for variable in tree.shape_variables}
    arrays = [
        RANDOM.integers(0 if tensor.dtype == "int32" else -3, 4, [
            sizes.get(extent, extent) for extent in tensor.extents
        ]).astype(tensor.dtype)
        for tensor in tree.inputs
    ]  # fmt: skip
    function = notation.compile(text, sizes, level="estimate", threads=threads)
    results = function(*arrays)
    expected = notation.interpret(text, dict(zip(function.names, arrays, strict=True)))
    for output, value in expected.items():
        result = results[output] if isinstance(results, dict) else results
        np.testing.assert_array_equal(result.astype(value.dtype), value)


def test_arrays_in_order_or_by_name() -> None:
    """Of one and of several outputs; what does not fit is refused in both ways."""
    text = "def f(float(N) A, int(N) I) -> (B, C) { B(n) = A(I(n))  C(n) = A(n) + I(n) }"
    for check in (False, True):
        function = notation.compile(text, {"N": 6}, level="estimate", check=check)
        a, at = np.arange(6, dtype="f4"), np.arange(5, -1, -1, dtype="i4")
        for results in (function(a, at), function(I=at, A=a), function(a, I=at)):
            assert list(results) == ["B", "C"]
            assert np.array_equal(results["B"], a[::-1]) and np.array_equal(results["C"], a + at)
        for arrays, named in (((at, a), {}), ((a, at[:5]), {}), ((at,), {"I": at})):
            with pytest.raises((TypeError, ValueError), match=r"[AI]: expected"):
                function(*arrays, **named)


def test_scalars_may_be_numbers() -> None:
    text = "def f(float(N) A, float s, int n, bf16 h) -> (B) { B(i) = A(i) * s + n * h }"
    function = notation.compile(text, {"N": 3}, level="estimate")
    a = np.arange(3, dtype="f4")
    for s, n, h in (
        (2, 3, 0.5),
        (np.float32(2), np.int64(3), np.asarray(to_bf16(np.float32([0.5]))[0])),
    ):
        assert function(a, s, n, h).tolist() == [1.5, 3.5, 5.5]
    assert notation.compile(text, level="estimate")(a, s=2.0, n=3, h=0.5).tolist() == [
        1.5,
        3.5,
        5.5,
    ]
    with pytest.raises(TypeError, match=r"n: expected a whole number, got 2\.5"):
        function(a, 1.0, 2.5, 0.5)


def test_sizes_that_nothing_has_are_refused_before_a_call() -> None:
    text = "def f(float(N,M) A) -> (B) { B(i) +=! A(i,j) }"
    with pytest.raises(SpecError, match="Q=3: no shape variable or scalar"):
        notation.compile(text, {"Q": 3}, level="estimate")
    with pytest.raises(SpecError, match=r"N=\[0, 2\]: expected a positive size"):
        notation.compile(text, {"N": [0, 2]}, level="estimate")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "O(i) = A(i*i) where i in 0:4",
            r"A\(\(i \* i\)\).*takes values 9 to 9, but axis 0 has 0 to 4",
        ),
        ("O(i) +=! A(i*k - 3) where i in 0:4, k in 0:3", "takes values -3 to -1"),
        ("O(i) = i*i > 4 ? A(i*i) : 0 where i in 0:3", None),
        ("O(i) = i*i < 5 ? A(i*i) : 0 where i in 0:4", None),
        ("O(i) = A(I(i)*i)", None),  # data decide
    ],
)
def test_computed_subscripts_that_leave_their_axis_for_all_data(
    body: str, message: str | None
) -> None:
    text = f"def f(float(N) A, int(M) I) -> (O) {{ {body} }}"
    sizes = {"N": 5, "M": 3}
    if message is None:
        notation.compile(text, sizes, level="estimate")
    else:
        with pytest.raises(SpecError, match=message):
            notation.compile(text, sizes, level="estimate")
