"""polysci.einsum against numpy.einsum: small integers give the same numbers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import polysci
from polysci.errors import SpecError
from tests.support import einsum_equations

RANDOM = np.random.default_rng(3)
EQUATIONS = [
    ("bhmd,bhnd->bhmn", (2, 3, 5, 8), (2, 3, 7, 8)),
    ("ij,jk->ki", (5, 6), (6, 7)),
    ("ij,jk", (5, 6), (6, 7)),
    ("kc,nchw->nkhw", (6, 5), (2, 5, 3, 4)),
    ("ij,jk,kl->il", (9, 2), (2, 9), (9, 3)),
    ("ea,fb,abcd,gc,hd->efgh", (3, 4), (3, 4), (4, 4, 4, 4), (3, 4), (3, 4)),
    ("ii", (6, 6)),
    ("ii->i", (6, 6)),
    ("ijji->j", (4, 3, 3, 4)),
    ("ij->", (5, 6)),
    ("ba", (5, 6)),
    ("i,j->ij", (5,), (6,)),
    ("i,i", (9,), (9,)),
    ("ij,j", (5, 6), (6,)),
    ("ij,ij->i", (5, 6), (5, 6)),
    ("...ij,...jk->...ik", (2, 1, 4, 5), (3, 5, 6)),
    ("...,...", (3, 4), (4,)),
    ("ij,jk->ik", (5, 1), (6, 7)),
    ("bij,bjk->ik", (4, 5, 6), (4, 6, 7)),
    ("bij,bkj->bik", (4, 5, 6), (4, 7, 6)),
    ("ij,kl->ijkl", (2, 3), (4, 5)),
    ("abcde,ceb->da", (2, 3, 4, 5, 6), (4, 6, 3)),
    ("ik,jkl,il->ij", (3, 4), (5, 4, 6), (3, 6)),
    (" i j , j k -> i k ", (2, 3), (3, 4)),
    ("aab,bc->ac", (3, 3, 4), (4, 5)),
    (",ij->ji", (), (3, 4)),
]


def arrays(*shapes: tuple[int, ...], dtype: str = "f4") -> list[Any]:
    return [RANDOM.integers(-3, 4, shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize(("equation", "shapes"), [(e, s) for e, *s in EQUATIONS])
def test_equations(equation: str, shapes: list[tuple[int, ...]]) -> None:
    operands = arrays(*shapes)
    result, expected = polysci.einsum(equation, *operands), np.einsum(equation, *operands)
    assert type(result) is type(expected) and result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("equation", einsum_equations.EQUATIONS)
def test_equations_of_other_libraries(equation: str) -> None:
    operands = arrays(*einsum_equations.shapes_of(equation), dtype="f8")
    try:
        expected = np.einsum(equation, *operands)
    except ValueError:  # sums along an ellipsis are PyTorch's alone
        expected = np.einsum(equation.replace("->", "->..."), *operands).sum((0, 1))
    result = polysci.einsum(equation, *operands)
    assert type(result) is type(expected) and result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("left", ["f8", "f4", "i4", "i8", "f2", "u1", "c8", "?"])
@pytest.mark.parametrize("right", ["f4", "i4"])
def test_element_types_are_those_of_numpy(left: str, right: str) -> None:
    operands = [*arrays((4, 5), dtype=left), *arrays((5, 6), dtype=right)]
    result, expected = (module.einsum("ij,jk->ik", *operands) for module in (polysci, np))
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


def test_other_forms_of_the_call() -> None:
    a, b = arrays((3, 4), (4, 5))
    out = np.empty((3, 5), "f4")
    assert polysci.einsum("ij,jk->ik", a, b, out=out, optimize="greedy") is out
    np.testing.assert_array_equal(out, a @ b)
    np.testing.assert_array_equal(polysci.einsum(a, [0, 1], b, [1, 2], [2, 0]), (a @ b).T)
    strided = polysci.einsum("ij,jk", a[:, ::2], b[::2].tolist())
    np.testing.assert_array_equal(strided, a[:, ::2] @ b[::2])
    assert polysci.einsum("ij,jk->ik", a[:0], b).shape == (0, 5)
    np.testing.assert_array_equal(polysci.einsum("ij,jk", a[:, :0], b[:0]), np.zeros((3, 5)))
    for lists in (
        (a, [..., 0], a, [..., 0], [...]), (a, [0, ...], [..., 0]), (a, [30, 51], b, [51, 2]),
        (a, [0, 1], [0]), (a[0], [0], b, [0, 1]),
    ):  # fmt: skip
        np.testing.assert_array_equal(polysci.einsum(*lists), np.einsum(*lists))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk", [(2, 3)]),
        ("ij,jk", [(2, 3), (4, 5)]),
        ("ij", [(2, 3, 4)]),
        ("ij->k", [(2, 3)]),
        ("ij->ii", [(2, 3)]),
        ("i?", [(2, 3)]),
    ],
)
def test_subscripts_that_do_not_fit(equation: str, shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(SpecError, match=re.escape(f"einsum: {equation!r}")):
        polysci.einsum(equation, *arrays(*shapes))


def test_a_call_without_arrays() -> None:
    with pytest.raises(ValueError, match="expected subscripts and arrays"):
        polysci.einsum()


def test_reproducible_sums_have_the_same_bits_for_all_threads() -> None:
    random = np.random.default_rng(2)
    a, b = (random.standard_normal(shape, np.float32) for shape in ((4, 20011), (20011, 16)))
    one, two = (
        polysci.einsum("ik,kj->ij", a, b, threads=threads, reproducible=True) for threads in (1, 2)
    )
    assert np.array_equal(one, two)
    with pytest.raises(TypeError, match="reproducible"):
        polysci.einsum("ik,kj->ij", a, b, reproducible=1)
