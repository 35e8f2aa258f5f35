"""polysci.einsum against numpy.einsum: small integers give the same numbers."""

from __future__ import annotations

import re
from random import Random
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
    ("ik,j,ij,AAA", (5, 5), (3,), (1, 1), (1, 1, 1)),
    ("ia,ib,jb->ij", (1, 4), (1, 2), (6, 2)),
]


def arrays(*shapes: tuple[int, ...], dtype: str = "f4") -> list[Any]:
    return [RANDOM.integers(-3, 4, shape).astype(dtype) for shape in shapes]


@pytest.mark.sampled
@pytest.mark.parametrize(("equation", "shapes"), [(e, s) for e, *s in EQUATIONS])
def test_equations(equation: str, shapes: list[tuple[int, ...]]) -> None:
    operands = arrays(*shapes)
    result, expected = polysci.einsum(equation, *operands), np.einsum(equation, *operands)
    assert type(result) is type(expected) and result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
@pytest.mark.parametrize("left", ["f8", "f4", "i4", "i8", "f2", "u1", "c8", "?"])
@pytest.mark.parametrize("right", ["f4", "i4"])
def test_element_types_are_those_of_numpy(left: str, right: str) -> None:
    operands = [*arrays((4, 5), dtype=left), *arrays((5, 6), dtype=right)]
    result, expected = (module.einsum("ij,jk->ik", *operands) for module in (polysci, np))
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.exhaustive
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
        (a, [0, 1], [0]), (a[0], [0], b, [0, 1]), (a, (1, 0)), (a, np.array([26, 3])),
        (b"ij,jk", a, b), (b"", 1.5),
    ):  # fmt: skip
        np.testing.assert_array_equal(polysci.einsum(*lists), np.einsum(*lists))


CALLS: list[tuple[str, list[str], dict[str, Any]]] = [
    ("ij,jk", ["f4", "f4"], {"dtype": "f8"}),
    ("ij,jk", ["f4", "f4"], {"dtype": "f2", "casting": "same_kind"}),
    ("ij,jk", ["f4", "f4"], {"dtype": "i4", "casting": "unsafe"}),
    ("ij,jk", ["f4", "f4"], {"dtype": "c8"}),
    ("ij,jk", ["f4", "f4"], {"casting": "no", "order": "F"}),
    ("ij,jk->ki", ["f4", "f8"], {"order": "C"}),
    ("ij,jk", ["f8", "f4"], {"order": "A"}),
    ("ij,jk", ["f4", "f4"], {"out": np.zeros((3, 3), "f8")}),
    ("ij,jk", ["f8", "f4"], {"out": np.zeros((3, 3), "f4", "F"), "casting": "same_kind"}),
    ("ij->", ["i4"], {"out": np.zeros((), "i4")}),
    ("ij,jk", ["?", "?"], {"out": np.zeros((3, 3), "f4")}),
    ("ij,jk,kl->il", ["f4"] * 3, {"optimize": ["einsum_path", (0, 1), (0, 1)]}),
    ("ij,jk", ["f4", "f4"], {"optimize": ("greedy", 100)}),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("equation", "dtypes", "options"), CALLS)
def test_options_are_those_of_numpy(
    equation: str, dtypes: list[str], options: dict[str, Any]
) -> None:
    operands = [np.asfortranarray(arrays((3, 3), dtype=dtype)[0]) for dtype in dtypes]
    expected = np.array(np.einsum(equation, *operands, **options), order="K")
    result = polysci.einsum(equation, *operands, **options)
    assert result.dtype == expected.dtype and ("out" not in options or result is options["out"])
    np.testing.assert_array_equal(result, expected)
    if options.get("order"):
        assert result.flags.f_contiguous == expected.flags.f_contiguous


READ_ONLY = np.zeros((3, 3), "f4")
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"dtype": "i4"}, TypeError, "operand 0: float32 to int32 is no cast of casting=safe"),
        ({"dtype": "zz"}, TypeError, "data type 'zz' not understood"),
        ({"casting": "zz"}, SpecError, "casting='zz': expected one of no, equiv"),
        ({"order": "Z"}, SpecError, "order='Z': expected one of C, F, A, K"),
        ({"out": np.zeros((3, 3), "f2")}, TypeError, "out: float32 to float16 is no cast"),
        ({"out": np.zeros((3, 2), "f4")}, SpecError, r"out: expected shape \(3, 3\), got \(3, 2\)"),
        ({"out": np.zeros((1, 3, 3), "f4")}, SpecError, r"out: expected shape \(3, 3\)"),
        ({"out": [0]}, TypeError, "out: expected an array, got list"),
        ({"out": READ_ONLY}, SpecError, "out: the array is read-only"),
        ({"optimize": "fast"}, TypeError, "optimize='fast': expected True, False"),
        ({"optimize": [(0, 1)]}, TypeError, "optimize=.*: expected True, False"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], kind: Any, message: str) -> None:
    a = arrays((3, 3))[0]
    for module in (np, polysci):
        if module is np and "optimize" in options:
            continue
        with pytest.raises((TypeError, ValueError)) as error:
            module.einsum("ij,jk", a, a, **options)
    assert type(error.value) is kind
    assert re.search(f"^einsum: {message}", str(error.value))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk", [(2, 3)]),
        ("ij,jk", [(2, 3), (4, 5)]),
        ("ij", [(2, 3, 4)]),
        ("ij->k", [(2, 3)]),
        ("ij->ii", [(2, 3)]),
        ("i?", [(2, 3)]),
        ("ii->i", [(2, 1)]),
        ("jij,j", [(1, 3, 4), (4,)]),
        ("i...j,,...k", [(2, 3), (3, 5)]),
        ("ij", []),
    ],
)
def test_subscripts_that_do_not_fit(equation: str, shapes: list[tuple[int, ...]]) -> None:
    for dtype in ("f4", "?"):  # those of "?" are NumPy's
        with pytest.raises(SpecError, match="einsum: ") as error:
            polysci.einsum(equation, *arrays(*shapes, dtype=dtype))
        assert not shapes or repr(equation) in str(error.value)


@pytest.mark.parametrize(
    ("operands", "kind", "message"),
    [
        ((), SpecError, "expected subscripts and arrays"),
        ((np.ones(3),), SpecError, "expected subscripts and arrays"),
        ((np.ones(3), [0], np.ones(3)), TypeError, "subscript .*1.0.*: expected a whole number"),
        ((np.ones(3), "i"), TypeError, "'i': expected a list of numbers and"),
        ((np.ones(3), [0.5]), TypeError, "subscript 0.5: expected a whole number or"),
        ((np.ones(3), [52]), SpecError, "subscript 52: expected 0 to 51"),
        (("i", "abc"), SpecError, "'i' of shapes"),
        (("i->", np.array(["2020-01-01"], "M8[D]")), TypeError, "'i->' of shapes"),
    ],
)
def test_arguments_that_do_not_fit(operands: tuple[Any, ...], kind: Any, message: str) -> None:
    with pytest.raises(kind, match=f"^einsum: {message}") as error:
        polysci.einsum(*operands)
    assert type(error.value) is kind


def random_equation(draw: Random) -> tuple[str, list[Any]]:
    """Two to four terms, with repeated labels, extents of 1 that are broadcast, an ellipsis."""
    extents = {label: draw.choice([1, 2, 3, 5, 7]) for label in "ijkxAB"}
    batch, terms, shapes = [draw.choice([1, 2, 3]) for _ in range(2)], [], []
    ellipsis = draw.random() < 0.4
    for _ in range(draw.randint(1, 4)):
        word = [draw.choice("ijkxAB") for _ in range(draw.randint(0, 3))]
        shorter = {label: 1 for label in word if draw.random() < 0.1}
        shape = [{**extents, **shorter}[label] for label in word]
        if ellipsis:
            place, first = draw.randint(0, len(word)), draw.randint(0, 2)
            word[place:place], shape[place:place] = ["..."], batch[first:]
        terms.append("".join(word))
        shapes.append(tuple(shape))
    labels = sorted({*"".join(terms)} - {"."})
    result = draw.sample(labels, draw.randint(0, len(labels)))
    result.insert(draw.randint(0, len(result)), "..." if ellipsis else "")
    return f"{','.join(terms)}->{''.join(result)}", arrays(*shapes, dtype=draw.choice(["f4", "i8"]))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 9))]
)
def test_random_equations(seed: int) -> None:
    draw = Random(seed)
    for _ in range(3):
        equation, operands = random_equation(draw)
        result = polysci.einsum(equation, *operands, threads=draw.choice([1, 2]))
        np.testing.assert_array_equal(result, np.einsum(equation, *operands), equation)


@pytest.mark.exhaustive
def test_reproducible_sums_have_the_same_bits_for_all_threads() -> None:
    random = np.random.default_rng(2)
    a, b = (random.standard_normal(shape, np.float32) for shape in ((4, 20011), (20011, 16)))
    one, two = (
        polysci.einsum("ik,kj->ij", a, b, threads=threads, reproducible=True) for threads in (1, 2)
    )
    assert np.array_equal(one, two)
    with pytest.raises(TypeError, match="reproducible"):
        polysci.einsum("ik,kj->ij", a, b, reproducible=1)
