"""Derived gradients against central differences of the interpreter, in float64."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from polysci import notation
from polysci.errors import SpecError, UnsupportedError
from tests.support.random_programs import OPERANDS, random_program

RANDOM = np.random.default_rng(11)
INPUTS = (
    "double(M,K) A, double(K,N) B, double(M) V, double(T,P,H,W) X, double(Q,P,R,R) Y, int(K) I, "
    "double s"
)
SIZES = {"M": 3, "K": 4, "N": 5, "T": 1, "P": 2, "H": 6, "W": 5, "Q": 2, "R": 3}
SHAPES = {
    "A": (3, 4), "B": (4, 5), "V": (3,), "X": (1, 2, 6, 5), "Y": (2, 2, 3, 3), "s": (),
}  # fmt: skip
STATEMENTS = [
    ("Z(m,n) +=! A(m,k) * B(k,n)", "AB"),
    ("Z(m,n) +=! A(m,k) * A(n,k)", "A"),
    ("Z(m) +=! A(m,k)  Z(m) += 2.0 * A(m,k) * V(m)", "AV"),
    ("Z(t,q,h,w) +=! X(t,p,h+r,w+u) * Y(q,p,r,u)", "XY"),
    ("Z(t,q,h,w) +=! X(t,p,2*h+r,2*w+u) * Y(q,p,r,u)", "XY"),
    (
        "Z(t,q,h,w) +=! h+r >= 1 && h+r < 7 && w+u >= 1 && w+u < 6 ? "
        "X(t,p,h+r-1,w+u-1) * Y(q,p,r,u) : 0.0 where h in 0:H, w in 0:W, r in 0:R, u in 0:R",
        "XY",
    ),
    ("Z(m) max=! A(m,k) * V(m)", "AV"),
    ("Z(m) min=! A(m,k)", "A"),
    ("Z(m) max=! A(m,k) * V(m) where j in 0:5, i in 1:3", "AV"),
    ("Z(m) *=! A(m,k)", "A"),
    ("Z +=! A(m,m) where m in 0:M", "A"),
    ("Z(m) = A(m,2) * A(m,2*m) where m in 0:2", "A"),
    ("Z(k) = A(2, 3-k) * s", "As"),
    ("Z(m,k) = A(m+k, 1+m-k) * V(k) where m in 0:2, k in 0:2", "AV"),
    ("Z(k,n) = B(I(k), n)", "B"),
    ("Z(m,k) = A(m,k) > 0.0 ? exp(A(m,k)) : A(m,k) * V(m)", "AV"),
    ("Z(m,k) = tanh(A(m,k)) + sigmoid(V(m)) * erf(V(m)) - gelu(V(m)) / (2.0 + sin(V(m)))", "AV"),
    ("Z(m,k) = sqrt(square(A(m,k)) + 1) + softplus(V(m)) + silu(V(m)) + log(2 + cos(V(m)))", "AV"),
    ("Z(m,k) = pow(square(A(m,k)) + 1.0, V(m)) + max(A(m,k), V(m)) * abs(A(m,k))", "AV"),
    (
        "U(m) max=! A(m,k)  E(m,k) = exp(A(m,k) - U(m))  S(m) +=! E(m,k)  "
        "Z(m,k) = E(m,k) / S(m)",
        "A",
    ),
    ("D(m) +=! A(m,k) / A.1  F(m) +=! square(A(m,k) - D(m))  "
     "Z(m,k) = (A(m,k) - D(m)) * rsqrt(F(m) + 1e-5) * V(m)", "AV"),
    ("Z(m,k) = A(m,k) * A(m,k)  G(m,k) = Z(m,k) * Z(m,k)  Z(m,k) += G(m,k) * V(m)", "AV"),
    ("Z(m) max=! A(m,k)  Z(m) += square(V(m))", "AV"),
    ("Z(m) *=! A(m,k)  Z(m) += V(m) where m in 1:3  G(m) = Z(m) * Z(m)  Z(m) += G(m)", "AV"),
    ("G = V(0) * V(1)  V(m) += G * A(m,k)  Z(m) = V(m) * V(m)", "AV"),
    ("Z +=! A(m,k)  S = Z * Z  Z += S", "A"),
    ("Z(m) = V(m)  Z(m) += Z(m) > 0.0 ? V(m) : -s * V(m)", "Vs"),
    ("Z(m,k) = A(m,k) * float(A(m,k) <= V(m)) + float(A(m,k) >= 0.5) * s", "AVs"),
    ("L(m,n) +=! A(m,k) * B(k,n)  G(m,n) = max(L(m,n), 0.0)  Z(m,k) +=! G(m,n) * B(k,n)", "AB"),
]  # fmt: skip


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("statements", "inputs"), STATEMENTS)
def test_gradients_are_central_differences(statements: str, inputs: str) -> None:
    text = f"def f({INPUTS}) -> (Z) {{ {statements} }}"
    values = {name: RANDOM.normal(size=shape) for name, shape in SHAPES.items()}
    values["I"] = np.array([2, 0, 2, 1])
    z = notation.interpret(text, values)["Z"]
    weights = RANDOM.normal(size=z.shape)
    backward = notation.grad(text, *inputs, sizes=SIZES)
    gradients = notation.interpret(backward, {**values, "d_Z": weights})
    assert [*gradients] == [f"d_{name}" for name in inputs]
    for name in inputs:
        direction, step = RANDOM.normal(size=SHAPES[name]), 1e-6
        ends = [
            np.sum(weights * notation.interpret(text, {**values, name: moved})["Z"])
            for moved in (values[name] + step * direction, values[name] - step * direction)
        ]
        slope = (ends[0] - ends[1]) / (2 * step)
        expected = np.sum(gradients[f"d_{name}"] * direction)
        assert gradients[f"d_{name}"].shape == SHAPES[name]
        assert abs(slope - expected) < 1e-6 * (1 + np.abs(ends).max())


@pytest.mark.exhaustive
def test_compiled_gradients_are_those_of_the_interpreter() -> None:
    text = """
    def block(float(T,P,H,W) X, float(Q,P,R,R) Y, float(Q) bias) -> (Z) {
        C(t,q,h,w) +=! X(t,p,h+r,w+u) * Y(q,p,r,u)
        Z(t,q,h,w) = relu(C(t,q,h,w) + bias(q))
    }
    """
    sizes = {"T": 2, "P": 3, "H": 7, "W": 6, "Q": 16, "R": 3}
    backward = notation.grad(text, sizes=sizes)
    shapes = {"X": (2, 3, 7, 6), "Y": (16, 3, 3, 3), "bias": (16,), "d_Z": (2, 16, 5, 4)}
    values = {name: RANDOM.integers(-3, 4, shape).astype("f4") for name, shape in shapes.items()}
    expected = notation.interpret(backward, values)
    function = notation.compile(text, sizes, level="estimate").grad()
    for name, value in function(**values).items():
        np.testing.assert_array_equal(value, expected[name])


def test_an_input_that_nothing_depends_on_has_zeros() -> None:
    text = "def f(float(N) A, float(N) B) -> (C) { C(i) = A(i) + float(rint(B(i)) > 0) }"
    backward = notation.grad(text, sizes={"N": 3})
    values = dict.fromkeys(("A", "B", "d_C"), np.ones(3))
    gradients = notation.interpret(backward, values)
    assert gradients["d_A"].tolist() == [1, 1, 1] and gradients["d_B"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("function", sorted({*notation.BUILTINS} - {"isnan", "isinf"}))
def test_every_function_has_derivatives(function: str) -> None:
    arity, _ = notation.BUILTINS[function]
    names = "XYT"[:arity]
    arguments = ", ".join(f"{name}(i)" for name in names)
    text = (
        f"def f(double(N) X, double(N) Y, double(N) T) -> (Z) {{ Z(i) = {function}({arguments}) }}"
    )
    ends = (1.1, 9.0) if function == "acosh" else (-4.4, 4.6)
    ends = (-0.9, 0.9) if function in ("asin", "acos", "atanh") else ends
    values = {"X": np.linspace(*ends, 12), "Y": np.linspace(4.7, -4.8, 12), "T": np.ones(12)}
    if function == "pow" or function.startswith(("log", "sqrt", "rsqrt")):
        values["X"] = np.abs(values["X"])
    gradients = notation.interpret(
        notation.grad(text, sizes={"N": 12}), {**values, "d_Z": np.ones(12)}
    )
    for name in names:
        high, low = (
            notation.interpret(text, {**values, name: values[name] + move})["Z"]
            for move in (1e-6, -1e-6)
        )
        slope = (high - low) / 2e-6
        np.testing.assert_allclose(gradients[f"d_{name}"], slope, rtol=1e-5, atol=1e-7)


def test_powers_of_zero_have_gradients() -> None:
    text = "def f(double(N) A, double(N) B) -> (Z) { Z(i) = pow(A(i), B(i)) + pow(A(i), 0) }"
    values = {"A": [0.0, 0.0, 2.0], "B": [0.0, 2.0, 0.0], "d_Z": np.ones(3)}
    gradients = notation.interpret(notation.grad(text, sizes={"N": 3}), values)
    assert gradients["d_A"].tolist() == [0, 0, 0]
    assert gradients["d_B"][:2].tolist() == [0, 0]


def test_gradients_of_gradients_are_central_differences() -> None:
    text = "def f(double(N) A) -> (O) { P(i) = exp(A(i))  P(i) += A(i)  O(i) = P(i) * P(i) }"
    second = notation.grad(notation.grad(text, "A", sizes={"N": 3}), "A")
    values = {"A": np.array([0.5, -1.0, 0.25]), "d_O": np.ones(3), "d_d_A": np.ones(3)}
    grown = np.exp(values["A"]) + values["A"]
    slope = np.exp(values["A"]) + 1
    expected = 2 * (slope**2 + grown * np.exp(values["A"]))
    np.testing.assert_allclose(notation.interpret(second, values)["d_A"], expected)


def test_scalars_of_known_value_stay_real() -> None:
    text = "def f(double(N) A, float s) -> (B) { B(i) = A(i) * (s / 2) }"
    backward = notation.grad(text, "A", sizes={"N": 2, "s": 3})
    values = {"A": np.ones(2), "d_B": np.ones(2)}
    assert notation.interpret(backward, values)["d_A"].tolist() == [1.5, 1.5]


@pytest.mark.exhaustive
def test_quotients_by_numbers_keep_doubles() -> None:
    text = "def f(double(N) A) -> (B) { B(i) = A(i) / 9 }"
    for divisor in ("9", "A.0"):
        function = notation.compile(text.replace("9", divisor), {"N": 9}, level="estimate")
        d_b = np.arange(1.0, 10.0)
        np.testing.assert_allclose(function.grad("A")(np.ones(9), d_B=d_b), d_b / 9, rtol=1e-15)


def test_refusals() -> None:
    text = "def f(float(N) A, int(N) I) -> (B) { B(i) = A(i) * I(i) }"
    with pytest.raises(SpecError, match="I is no real input: A"):
        notation.grad(text, "I", sizes={"N": 3})
    with pytest.raises(SpecError, match="the size of N is missing"):
        notation.grad(text)
    with pytest.raises(SpecError, match="d_A is an input: the gradient of A would have its name"):
        notation.grad(
            text.replace("int(N) I", "float(N) d_A").replace("I(i)", "d_A(i)"), sizes={"N": 3}
        )
    with pytest.raises(UnsupportedError, match="A has values before"):
        notation.grad(text.replace("}", "A(i) = B(i) }"), sizes={"N": 3})


# Two inputs A and B of these words -> the statements, and what PyTorch computes them by.
PROGRAMS = {
    "L(m) max=! A(m,k)  E(m,k) = exp(A(m,k) - L(m))  S(m) +=! E(m,k)  P(m,k) = E(m,k) / S(m)"
    "  Z(m,n) +=! P(m,k) * B(k,n)": lambda torch, a, b: torch.softmax(a, 1) @ b,
    "D(m) +=! A(m,k) / A.1  V(m) +=! square(A(m,k) - D(m)) / A.1"
    "  Z(m,k) = (A(m,k) - D(m)) * rsqrt(V(m) + 1e-5) * B(k,0)":
        lambda torch, a, b: torch.nn.functional.layer_norm(a, a.shape[1:]) * b[:, 0],
    "Z(k,w) +=! B(k, w+r) * A(r, k) where r in 0:3": lambda torch, a, b: torch.conv1d(
        b[None], a[:3].T[:, None], groups=len(b)
    )[0],
    "H(m,n) +=! A(m,k) * B(k,n)  G(m,n) = gelu(H(m,n))  Z(m,j) +=! G(m,n) * B(j,n)":
        lambda torch, a, b: torch.nn.functional.gelu(a @ b) @ b.T,
    "Z(m,n) +=! A(m,k) * A(n,k) * B(k,0)": lambda torch, a, b: (a * b[:, 0]) @ a.T,
    "H(m,k) = A(m,k) > 0 ? A(m,k) : 0.1 * A(m,k)  Z(m) min=! H(m,k)":
        lambda torch, a, b: torch.nn.functional.leaky_relu(a, 0.1).min(1).values,
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("statements", PROGRAMS)
def test_gradients_are_those_of_autograd(statements: str) -> None:
    torch = pytest.importorskip("torch")
    for seed in range(3):
        random = np.random.default_rng(seed)
        m, k, n = (int(size) for size in random.integers(4, 12, 3))
        a, b = random.normal(size=(m, k)), random.normal(size=(k, n))
        leaves = [torch.tensor(array, requires_grad=True) for array in (a, b)]
        z = PROGRAMS[statements](torch, *leaves)
        d_z = random.normal(size=tuple(z.shape))
        z.backward(torch.tensor(d_z))
        text = f"def f(double(M,K) A, double(K,N) B) -> (Z) {{ {statements} }}"
        backward = notation.grad(text, sizes={"M": m, "K": k, "N": n})
        gradients = notation.interpret(backward, {"A": a, "B": b, "d_Z": d_z})
        compiled = notation.compile(text, {"M": m, "K": k, "N": n}, level="estimate").grad("A", "B")
        for results in (gradients, compiled(a, b, d_Z=d_z)):
            for leaf, result in zip(leaves, results.values(), strict=True):
                expected = np.zeros(result.shape) if leaf.grad is None else leaf.grad.numpy()
                np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(120))
def test_gradients_of_random_programs_are_central_differences(seed: int) -> None:
    random = np.random.default_rng(seed)
    text = random_program(Random(seed))
    values = {name: random.normal(size=shape) for name, shape in OPERANDS.items()}
    weights = random.normal(size=notation.interpret(text, values)["Z"].shape)
    gradients = notation.interpret(notation.grad(text), {**values, "d_Z": weights})
    direction = {name: random.normal(size=shape) for name, shape in OPERANDS.items()}
    expected = sum(np.sum(gradients[f"d_{name}"] * direction[name]) for name in OPERANDS)

    def differ(step: float) -> bool:
        ends = [
            np.sum(weights * notation.interpret(
                text, {name: value + move * direction[name] for name, value in values.items()}
            )["Z"])
            for move in (-step, step)
        ]  # fmt: skip
        slope = (ends[1] - ends[0]) / (2 * step)
        return bool(abs(slope - expected) > 1e-6 * (1 + np.abs([*ends, expected]).max()))

    # A step may cross a kink of max, min or a comparison: a smaller one does not.
    assert not all(map(differ, (1e-6, 1e-5, 1e-7))), text
