"""contraction: one rule finds the roles in every nest that is a GEMM at heart."""

from __future__ import annotations

from pathlib import Path

import pytest

from polysci.errors import UnsupportedError
from polysci.numerics.affine import Affine
from polysci.polyhedral.contraction import Contraction, Operand, contraction
from polysci.polyhedral.extract import extract

DATA = Path(__file__).parents[1] / "data"


def found(loops: str, statement: str, before: str) -> Contraction:
    """The contraction of ``statement`` under ``loops``, written ``i3 j4``."""
    nest = "".join(f"for (int {w[0]} = 0; {w[0]} < {w[1:]}; ++{w[0]}) " for w in loops.split())
    return contraction(extract(f"{before}\n#pragma scop\n{nest}{statement}\n#pragma endscop\n"))


def test_convolution() -> None:
    conv = contraction(extract((DATA / "conv2d.c").read_text()))
    assert str(conv) == "m=(n,p,q) n=k k=c br=(r,s) batch=g"
    assert [(dim.name, dim.extent) for dim in conv.dims] == [
        ("n", 1), ("g", 2), ("k", 8), ("p", 112), ("q", 112), ("c", 4), ("r", 7), ("s", 7)
    ]  # fmt: skip
    assert conv.padded and not conv.clipped and conv.by_role("n")
    assert (conv.out.array, conv.a.array, conv.b.array) == ("O", "I", "W")
    assert str(conv.a) == "I[n][4*g + c][2*p + r - 3][2*q + s - 3]"
    assert str(conv.b) == "W[8*g + k][c][r][s]"
    assert conv.a.shape == (1, 8, 224, 224)
    assert conv.extent("q") == 112


PLAIN = "float O[2][8][5][5], I[2][4][7][7], W[8][4][3][3];"


@pytest.mark.parametrize(
    "statement",
    [
        "O[n][k][p][q] += I[n][c][p+r][q+s] * W[k][c][r][s];",
        "O[n][k][p][q] = W[k][c][r][s] * I[n][c][p+r][q+s] + O[n][k][p][q];",
    ],
)
def test_the_image_is_a_however_it_is_written(statement: str) -> None:
    conv = found("n2 k8 p5 q5 c4 r3 s3", statement, PLAIN)
    assert str(conv) == "m=(n,p,q) n=k k=c br=(r,s)"
    assert conv.a.array == "I" and not conv.padded


FAMILY = {
    "matmul": (
        "i3 j4 k5",
        "C[i][j] += A[i][k] * B[k][j];",
        "float C[3][4], A[3][5], B[5][4];",
        "m=i n=j k=k",
    ),
    "transposed": (
        "i3 j4 k5",
        "C[i][j] += A[k][i] * B[j][k];",
        "float C[3][4], A[5][3], B[4][5];",
        "m=i n=j k=k",
    ),
    "batched": (
        "b2 i3 j4 k5",
        "C[b][i][j] += A[b][i][k] * B[b][k][j];",
        "float C[2][3][4], A[2][3][5], B[2][5][4];",
        "m=i n=j k=k batch=b",
    ),
    "mlp": (
        "n3 o4 i5",
        "Y[n][o] += X[n][i] * W[o][i];",
        "float Y[3][4], X[3][5], W[4][5];",
        "m=n n=o k=i",
    ),
    "blocked reduction": (
        "i3 j4 l2 k5",
        "C[i][j] += A[l][i][k] * B[l][k][j];",
        "float C[3][4], A[2][3][5], B[2][5][4];",
        "m=i n=j k=k br=l",
    ),
    "one channel": (
        "k8 p5 q5 r3 s3",
        "O[k][p][q] += I[p+r][q+s] * W[k][r][s];",
        "float O[8][5][5], I[7][7], W[8][3][3];",
        "m=(p,q) n=k k=s br=r",
    ),
    "backward data": (
        "n2 k8 c4 p5 q5 r3 s3",
        "D[n][c][p+r][q+s] += E[n][k][p][q] * W[k][c][r][s];",
        "float D[2][4][7][7], E[2][8][5][5], W[8][4][3][3];",
        "m=(n,p,q) n=c k=k batch=(r,s)",
    ),
    "backward weights": (
        "k8 c4 r3 s3 n2 p5 q5",
        "W[k][c][r][s] += E[n][k][p][q] * I[n][c][p+r][q+s];",
        "float W[8][4][3][3], E[2][8][5][5], I[2][4][7][7];",
        "m=(c,r,s) n=k k=n br=(p,q)",
    ),
    "depthwise": (
        "n2 g4 p5 q5 r3 s3",
        "O[n][g][p][q] += I[n][g][p+r][q+s] * W[g][r][s];",
        "float O[2][4][5][5], I[2][4][7][7], W[4][3][3];",
        "m=(n,p,q) br=(r,s) batch=g",
    ),
    "outer product": ("i3 j4", "C[i][j] += x[i] * y[j];", "float C[3][4], x[3], y[4];", "m=i n=j"),
    "extents of one": (
        "n1 k1 p1 q1 c1 r1 s1",
        "O[n][k][p][q] += I[n][c][p+r][q+s] * W[k][c][r][s];",
        "float O[1][1][1][1], I[1][1][1][1], W[1][1][1][1];",
        "m=(n,p,q) n=k k=c br=(r,s)",
    ),
}


@pytest.mark.parametrize("name", FAMILY)
def test_one_rule_for_the_family(name: str) -> None:
    loops, statement, before, roles = FAMILY[name]
    conv = found(loops, statement, before)
    assert str(conv) == roles
    assert bool(conv.by_role("n")) == (" n=" in roles)
    assert [dim.name for dim in conv.dims] == [word[0] for word in loops.split()]
    if name == "backward weights":
        assert conv.a.array == "I"


def test_loops_are_counted_from_zero() -> None:
    before = "float C[9][9], A[9][9], B[9][9];"
    loops = "for (int i = 2; i <= 4; ++i) for (int j = 8; j > 5; --j) for (int k = 1; k < 9; ++k)"
    text = f"{before}\n#pragma scop\n{loops} C[i][j] += A[i][k - 1] * B[k][j];\n#pragma endscop\n"
    conv = contraction(extract(text))
    assert [str(dim) for dim in conv.dims] == ["i:3(m)", "j:3(n)", "k:8(k)"]
    assert str(conv.out) == "C[i + 2][j + 6]" and str(conv.a) == "A[i + 2][k]"


def test_guards_that_cut_the_output_are_told_apart() -> None:
    conv = found(
        "k8 c4 p5 r3",
        "if (p + r - 1 >= 0 && p + r - 1 < 5) D[c][p+r-1] += E[k][p] * W[k][c][r];",
        "float D[4][5], E[8][5], W[8][4][3];",
    )
    assert conv.clipped and not conv.padded


IJK = "i3 j4 k5"
ABC = "float C[3][4], A[3][5], B[5][4], D[5], E[9][9], F[3][4];"
NONE = {
    "C[i][j] += A[i][k] + B[k][j];": "not a product of two array elements",
    "C[i][j] += 2 * A[i][k] * B[k][j];": "not a product of two array elements",
    "C[i][j] -= A[i][k] * B[k][j];": "not a product of two array elements",
    "C[i][j] = A[i][k] * B[k][j];": "it overwrites its target in every step",
    "C[i][j] *= A[i][k] * B[k][j];": "not a product of two",
    "E[i][j] += E[i][k] * B[k][j];": "E is both written and a factor",
    "C[i][j] += A[i][k] * D[k];": "loop j indexes C alone",
    "C[i][0] += A[i][k] * D[k];": r"loop j indexes no array\. The form is RESULT",
    "if (i < j) C[i][j] += A[i][k] * B[k][j];": "its guards drop more",
    "if (k != 2) C[i][j] += A[i][k] * B[k][j];": "its guards drop more",
    "C[i][j] += A[i][k / 2] * B[k][j];": "a subscript of A divides or chooses",
    "C[i][j] += A[i > 0 ? i : 0][k] * B[k][j];": "a subscript of A divides or chooses",
    "for (int l = 0; l < i; ++l) C[i][j] += A[i][k] * E[l][j];": "do not span a box",
    "for (int l = 0; l < 9; l += 2) C[i][j] += A[i][k] * E[l][k];": "do not span a box|alone",
    "if (k < 3) C[i][j] += A[i][k] * F[k][j];": r"a guard keeps F\[k\]\[j\] .* A\[i\]\[k\] and C",
    "for (int l = 3; l < 3; ++l) C[i][j] += A[i][l] * B[l][j];": "a loop around it never runs",
    "{ C[i][j] = 0; C[i][j] += A[i][k] * B[k][j]; }": r"found 2 \(lines: 3, 3\)",
    ";": r"found 0 \(lines: none\)",
}


@pytest.mark.parametrize("statement", NONE)
def test_what_is_no_contraction(statement: str) -> None:
    with pytest.raises(UnsupportedError, match=NONE[statement]):
        found(IJK, statement, ABC)


def test_affine_and_operand() -> None:
    image = Operand(
        "I", (1, 8, 9, 9), (Affine(()), Affine((("c", 1),)), Affine((("p", 2), ("r", 1)), -1))
    )
    assert image.index[2].coef("p") == 2 and image.index[2].coef("q") == 0
    assert image.uses("r") and not image.uses("q")
    assert image.offset((648, 1, 72)) == Affine((("c", 1), ("p", 144), ("r", 72)), -72)
    assert str(image) == "I[0][c][2*p + r - 1]"
