"""Ranges of iterators, as Tensor Comprehensions infers them, and what they refuse."""

from __future__ import annotations

import islpy as isl
import pytest

from polysci.errors import SpecError
from polysci.frontends.notation.elaborate import elaborate
from polysci.frontends.notation.ranges import ComprehensionRanges, infer
from polysci.notation import parse


def inference(inputs: str, body: str, **sizes: int) -> ComprehensionRanges:
    return infer(elaborate(parse(f"def f({inputs}) -> (A) {{ {body} }}")), sizes)


@pytest.mark.parametrize(
    ("inputs", "body", "name", "values"),
    [
        ("float(I) B, float(J) C", "A(i) = B(i) + C(i-2)", "i", "2 <= i < I and i < J + 2"),
        ("float(I) B, float(J) C", "A(i) +=! B(i+k) * C(k)", "i", "0 <= i < I - J + 1"),
        ("float(I) B, float(J) C", "A(i) +=! B(i+k) * C(k)", "k", "0 <= k < J"),
        ("float(I) B", "A(i) = B(10-i)", "i", "11 - I <= i < 11"),
        ("float(I) B", "A(i) = B(2*i)", "i", "0 <= i < floor((I + 1)/2)"),
        ("float(I) B", "A(i) = B(2*i) + B(2*i+1)", "i", "0 <= i < floor(I/2)"),
        ("float(I) B", "A(i) +=! B(2*i+k) where k in 0:2", "i", "0 <= i < floor(I/2)"),
        ("float(I) B", "A(i) = B(i/3)", "i", "0 <= i < 3*I"),
        ("float(I) B, int(J) C", "A(i) = B(C(i))", "i", "0 <= i < J"),
        ("float(I) B, int(J) C", "A(i) = 1.0 where exists C(i)", "i", "0 <= i < J"),
        ("float(I) B, int s", "A(i) = B(s*i) where i in 2:I", "i", "2 <= i < I"),
        ("float(I) B", "A(i) = B(u8(i)) where i in 0:300", "i", "0 <= i < 300"),
        ("float(I) B", "A(i) = i > 0 ? B(i-1) : 0.0 where i in 0:I", "i", "0 <= i < I"),
        ("float(I, J) B", "A(i) = float(B.1) where i in 0:B.0", "i", "0 <= i < I"),
        ("float(I, J) B", "A(x) +=! B(b, x) where x in 0:J, x in 0:I", "x", "0 <= x < I and x < J"),
    ],
)
def test_ranges(inputs: str, body: str, name: str, values: str) -> None:
    result = inference(inputs, body)
    (statement,) = result.statements
    sizes = [size for size in "IJ" if size in inputs]
    positive = " and ".join(f"{size} > 0" for size in sizes)
    expected = isl.Set(f"[{', '.join(sizes)}] -> {{ [{name}] : {values} and {positive} }}")
    context = isl.Set(f"[{', '.join(sizes)}] -> {{ [{name}] : {positive} }}")
    actual = statement.alone(name).set_dim_name(isl.dim_type.set, 0, name) & context
    assert actual.is_equal(expected), str(actual)
    assert not result.warnings


def test_extents_reach_from_0_to_the_last_value() -> None:
    result = inference("float(I) B, float(J) C", "A(i) = B(i) + C(i-2)", I=20, J=7)
    assert result.shape("A") == (9,) and result.statements[0].bounds("i") == (2, 9)


def test_later_statements_know_the_extents_of_earlier_ones() -> None:
    body = "T(i) +=! B(i+k) * C(k)  A(j) = T(2*j) * T.0"
    assert inference("float(I) B, float(J) C", body, I=20, J=4).shape("A") == (9,)


def test_an_axis_that_must_be_large_enough_is_a_warning() -> None:
    inputs, body = "float(I) B, float(J) C, float(K) D", "A(i,j) = B(i) * C(i+j) * D(j)"
    (warning,) = inference(inputs, body).warnings
    assert "line 1:" in warning and "C((i + j))" in warning and "-2 + I + K" in warning
    assert not inference(inputs, body, I=3, J=7, K=5).warnings
    with pytest.raises(SpecError, match=r"\(i \+ j\) takes values 0 to 6, but axis 0 has 0 to 5"):
        inference(inputs, body, I=3, J=6, K=5)


@pytest.mark.parametrize(
    ("inputs", "body", "message"),
    [
        ("float(I) B, int s", "A(i) = B(s*i)", r"\(s \* i\) is no affine form.*where i in"),
        ("float(I) B, int(J) C", "A(i) = B(C(i + I*i))", "no affine form.*where i in"),
        ("float(I) B", "A(i) = 1.0", "nothing bounds i.*where i in"),
        ("float(I) B", "A(i) = B(i % 2)", "nothing bounds i.*where i in"),
        ("float(I) B", "A(i) +=! B(i + k)", "nothing bounds i"),
        ("float(I) B", "A(i) = B(i+I)", "i takes values .*but axes begin at 0"),
        (
            "float(3) B",
            "A(i) = B(i) where i in 0:4",
            "i takes values 0 to 3, but axis 0 has 0 to 2",
        ),
        (
            "float(3) B",
            "A(i) = B(i+3) where i in 0:3",
            "takes values 3 to 5, but axis 0 has 0 to 2",
        ),
        (
            "float(3) B",  # quotients are rounded towards zero, where (i-8)/3 would be -3 to -1
            "A(i) = B((i-8)/3 + 3) where i in 0:8",
            "takes values 1 to 3, but axis 0 has 0 to 2",
        ),
        (
            "float(9) B, float(2) C",  # iterators take all values from the first to the last
            "A(i) = B(i) + C(i%3)",
            r"\(i % 3\) takes values 0 to 2, but axis 0 has 0 to 1",
        ),
        (
            "float(9) B",
            "A(i) max=! (n == 2 ? B(2*i+1) : B(j)) + B(n) where i in 0:7",
            r"\(\(2 \* i\) \+ 1\) takes values 1 to 13, but axis 0 has 0 to 8",
        ),
        ("float(3) B", "A(i) +=! B(i+k) where k in 0:9", "i has no value inside all axes"),
        ("float(I) B", "A(i) = B(i) where i in 0:k", "k is not a subscript|the ends of a range"),
    ],
)
def test_refusals(inputs: str, body: str, message: str) -> None:
    with pytest.raises(SpecError, match=f"(?s){message}"):
        inference(inputs, body)


def test_a_condition_keeps_subscripts_inside() -> None:
    body = "A(i) = i > 0 && i < 5 ? B(i-1) : 0.0 where i in 0:9"
    assert inference("float(4) B", body).shape("A") == (9,)
    with pytest.raises(SpecError, match=r"\(i - 1\) takes values 0 to 3, but axis 0 has 0 to 2"):
        inference("float(3) B", body)
    with pytest.raises(SpecError, match=r"\(i - 1\) takes values -1 to 7"):
        inference("float(4) B", body.replace("&&", "||"))


def test_names_may_begin_with_a_digit() -> None:
    body = "A(2i) = B(2i + 0J) where 2i in 0:4, 2i in 0:0J+1"
    assert inference("float(0I) B, float(0J) C", body.replace("+ 0J", "+ 1"), **{"0J": 2})
    with pytest.raises(SpecError, match=r"takes values .*_0J"):
        inference("float(0I) B, float(0J) C", body, **{"0I": 1})


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("A(i,j) +=! B(i+k,j) where k in 0:3", [((("M", 1),), -2), ((("N", 1),), 0)]),
        ("A(i,j) = B(i,j) where i in 0:2", [((), 2), ((("N", 1),), 0)]),
        ("A(i) = B(2*i,0)", None),
        ("A(i) = B(i,i)", None),
        ("A +=! B(i,j)", []),
    ],
)
def test_shapes_that_are_linear_in_the_sizes(body: str, shape: list[object] | None) -> None:
    linear = inference("float(M,N) B", body).linear_shape("A")
    assert shape == (None if linear is None else [(form.terms, form.const) for form in linear])
