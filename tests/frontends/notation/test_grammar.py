"""Text -> tree -> text, and what is no text of the notation."""

from __future__ import annotations

import pytest

from polysci.errors import SpecError
from polysci.frontends.notation.elaborate import elaborate
from polysci.notation import parse

EVERYTHING = """
def 2LUT(float(E1,D) L1, int(B,L) I1, u8(4) t, bf16 s) -> (O, M) {  # a comment
    O(b,d) +=! L1(I1(b,l), d);
    total max= L1(a,b) where a in 0:3, b in 0:L1.1
    M(i) min=! -x * 2.5e-1f < 1e5 && !(t(i) == 3) ? half(t(i%2)) : fmax(1, 2)
        where exists t(i), x = t(i+1)
    p(b) argmax=! O(b, d)
    a, c = f(O, L1)
}
def f(double(N) A, double(N, M) B) -> (C, D) { C(i) = A(i) || B(i, 0)  D(i) *=! B(i, j) }
"""


def test_text_of_a_tree_is_read_as_the_same_tree() -> None:
    tree = parse(EVERYTHING)
    assert parse("\n".join(map(str, tree))) == tree
    first, second = tree
    assert (first.name, first.outputs) == ("2LUT", ("O", "M"))
    assert [tensor.dtype for tensor in first.inputs] == ["float32", "int32", "uint8", "bf16"]
    assert second.shape_variables == ("N", "M")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a + b * c", "(a + (b * c))"),
        ("a - b - c", "((a - b) - c)"),
        ("-a * b", "((-a) * b)"),
        ("a < b && c || !d", "(((a < b) && c) || (!d))"),
        ("a ? b : c ? d : e", "(a ? b : (c ? d : e))"),
        ("a == b < c", "(a == (b < c))"),
        ("1e3 + 2LUT", "(1000.0 + 2LUT)"),
        ("(a + b) % 3 / 2.", "(((a + b) % 3) / 2.0)"),
    ],
)
def test_operators_bind_as_in_c(text: str, value: str) -> None:
    (tree,) = parse(f"def f(float a) -> (x) {{ x = {text} }}")
    assert str(tree.assignments[0].value) == value


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        ("B(i) = A(i) +", "2:14", "unexpected '}'"),
        ("B(i) = A(i)$", "2:12", "unexpected character '$'"),
        ("B(i,i) = A(i)", "2:5", "i is repeated"),
        ("B(i) = exp(A(i), 1)", "2:8", "exp: expected 1 values, got 2"),
        ("B(i) = A(i, 0)", "2:8", "A has 1 axes, not 2"),
        ("B(i) = A.1", "2:8", "A has no axis 1"),
        ("B(i) = A(i) + 9223372036854775808", "2:15", "expected a whole number below 2**63"),
        ("B(i) = A(i) + " + "9" * 5000, "2:15", "expected a whole number below 2**63"),
        ("B(i) = A." + "9" * 5000, "2:10", "expected the number of an axis"),
        ("B(i) = a(i)", "2:8", "a is neither a tensor nor a function; did you mean 'A'?"),
        ("B(i) = A", "2:8", "A has 1 axes: write A(...)"),
        ("B(i) = A(k)", "2:1", "k is not a subscript of B"),
        ("B(i) += A(i)", "2:1", "B has no values before +="),
        ("C(i) = A(i)", "1:5", "no statement makes B"),
        ("B = g(A)", "2:5", "g is no comprehension before this"),
        ("B, C = g(A)", "2:8", "g is no comprehension before this"),
        ("B, C = f(A)", "2:8", "f calls itself"),
        ("B(A) = A(i)", "2:1", "A is an iterator here, and a tensor before"),
        ("B(N) = A(0)", "2:1", "N is an iterator here, and a shape variable"),
        ("B(i) = A(i) where N in 0:3", "2:1", "N is an iterator here, and a shape variable"),
        ("B argmax= A(i)", "2:3", "places are not combined with those before: argmax=!"),
        ("exp(i) = A(i)", "2:1", "exp is a function: a tensor has another name"),
        ("u8 = 1", "2:1", "u8 is a type: a tensor has another name"),
    ],
)
def test_an_error_shows_line_column_and_caret(body: str, line: str, message: str) -> None:
    text = f"def f(float(N) A) -> (B) {{\n{body}}}"
    with pytest.raises(SpecError) as error:
        elaborate(parse(text))
    lines = str(error.value).splitlines()
    assert lines[0].startswith(f"line {line}: {message}")
    column = int(line.partition(":")[2])
    if len(lines[1]) < 100:
        assert lines[2] == " " * (4 + column - 1) + "^"
    assert lines[2].strip() == "^"


LETS = ", ".join(f"x{at} = x{at + 1} + x{at + 1}" for at in reversed(range(99)))


@pytest.mark.sampled
@pytest.mark.parametrize(
    "value",
    [
        " + ".join(["A(i)"] * 101), "-" * 5000 + "A(i)", "exp(" * 300 + "A(i)" + ")" * 300,
        f"x0 where x99 = A(i), {LETS}", "i > 3 ? 1 : " * 3000 + "0",
    ],
)  # fmt: skip
def test_a_statement_that_is_too_long(value: str) -> None:
    with pytest.raises(SpecError, match=r"line 1:\d+: .*more than .* inside each other"):
        parse(f"def f(float(N) A) -> (B) {{ B(i) = {value} }}")
    parse(f"def f(float(N) A) -> (B) {{ B(i) = {'(' * 3000}A(i){')' * 3000} }}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(flot(N) A) -> (B) { B(i) = A(i) }", "unknown type flot; did you mean 'float'"),
        (
            "def f(float(0) A) -> (B) { B(i) = A(i) }",
            "expected a shape variable or a whole number from 1",
        ),
        ("def f(float(9223372036854775808) A) -> (A) { }", "1:13: expected a shape variable"),
        ("def f(float(N) A) -> (B) { B(i) = A(i)", "unexpected end of the text"),
        ("", "unexpected end of the text"),
        ("def f(float(N) A, float A) -> (A) { }", "A is repeated"),
        ("def f(float(N) A) -> (A, A) { }", "1:26: A is repeated"),
        ("def f(float A) -> (A) { } def f(float A) -> (A) { }", "1:31: f is defined twice"),
        ("def f(float(N) abs) -> (B) { B(i) = abs(i) }", "1:16: abs is a function"),
    ],
)
def test_other_errors(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message.replace("?", r"\?")):
        elaborate(parse(text))


def test_calls_are_replaced_by_the_statements_of_the_other() -> None:
    text = """
    def mm(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) where k in 0:K }
    def twice(float(M,M) X) -> (Y) { T = mm(X, X)  Y = mm(T, X) }
    """
    whole = elaborate(parse(text))
    assert [str(statement) for statement in whole.statements] == [
        "T(m, n) +=! (X(m, k) * X(k, n)) where k in 0:X.1",
        "Y(m, n) +=! (T(m, k) * X(k, n)) where k in 0:T.1",
    ]
    with pytest.raises(SpecError, match="mm has 2 inputs, not 1"):
        elaborate(parse(text.replace("mm(T, X)", "mm(T)")))
    with pytest.raises(SpecError, match="t: expected a tensor of 2 axes"):
        elaborate(parse(text.replace("T = mm(X, X)", "t(i) +=! X(i, j)  T = mm(X, t)")))


def test_a_comprehension_may_be_called_as_a_function() -> None:
    text = """
    def relu(float(N) I) -> (O) { O(i) = relu(I(i)) }
    def f(float(N) A, float a) -> (C) { B = relu(A)  C(i) = relu(a) + relu(B(i)) }
    """
    assert [str(statement) for statement in elaborate(parse(text)).statements] == [
        "B(i) = relu(A(i))",
        "C(i) = (relu(a()) + relu(B(i)))",
    ]
    with pytest.raises(SpecError, match="line 3:61: relu: expected 1 values, got 2"):
        elaborate(parse(text.replace("relu(a)", "relu(a, a)")))
