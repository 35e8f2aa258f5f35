"""Contractions as C loop nests: a table of them, and ways to write one."""

from dataclasses import replace

from polysci.ops import Nest
from polysci.ops.problem import Problem
from polysci.printers import ctree
from polysci.printers.c import CPrinter


def c_text(arrays: str, loops: str, statement: str, guard: str = "") -> str:
    """A C file: ``loops`` are ``name:extent`` or ``name:first..end``."""
    nest = ""
    for word in loops.split():
        name, _, bounds = word.partition(":")
        first, _, end = bounds.rpartition("..")
        nest += f"for (int {name} = {first or 0}; {name} < {end}; ++{name})\n  "
    condition = f"if ({guard})\n  " if guard else ""
    return f"float {arrays};\n#pragma scop\n{nest}{condition}{statement}\n#pragma endscop\n"


MATMUL = "C[37][50], A[37][23], B[23][50]", "i:37 j:50 k:23"
IMAGE = "p + r >= 1 && p + r - 1 < 12 && q + s >= 1 && q + s - 1 < 13"
_TABLE: dict[str, tuple[str, ...]] = {
    "matmul": (*MATMUL, "C[i][j] += A[i][k] * B[k][j];"),
    "transposed A": (
        "C[37][50], A[23][37], B[23][50]", "i:37 j:50 k:23", "C[i][j] += A[k][i] * B[k][j];",
    ),
    "transposed B": (
        "C[37][50], A[37][23], B[50][23]", "i:37 j:50 k:23", "C[i][j] += A[i][k] * B[j][k];",
    ),
    "transposed result": (
        "C[50][37], A[37][23], B[23][50]", "i:37 j:50 k:23", "C[j][i] += A[i][k] * B[k][j];",
    ),
    "all transposed": (
        "C[50][37], A[23][37], B[50][23]", "k:23 i:37 j:50", "C[j][i] += A[k][i] * B[j][k];",
    ),
    "factors exchanged": (*MATMUL, "C[i][j] = C[i][j] + B[k][j] * A[i][k];"),
    "names of generated code": (
        "C[37][50], A[37][23], B[23][50]", "x:37 w:50 packed:23",
        "C[x][w] += A[x][packed] * B[packed][w];",
    ),
    "names that end in digits": (
        "C[9][5][50], A[9][5][23], B[23][50]", "j0:9 j:5 i:50 i0:23",
        "C[j0][j][i] += A[j0][j][i0] * B[i0][i];",
    ),
    "one column": (
        "C[37][1], A[37][23], B[23][1]", "i:37 j:1 k:23", "C[i][j] += A[i][k] * B[k][j];",
    ),
    "vector by matrix": ("c[50], a[23], B[23][50]", "j:50 k:23", "c[j] += a[k] * B[k][j];"),
    "outer product": ("C[37][50], a[37], b[50]", "i:37 j:50", "C[i][j] = a[i] * b[j];"),
    "parts of the factors": (
        "C[37][50], A[40][60], B[50][60]", "i:37 j:50 k:23",
        "C[i][j] += A[i + 2][2 * k + 3] * B[2 * k + 1][j + 4];",
    ),
    "loops from elsewhere": (
        "C[37][50], A[39][23], B[23][55]", "i:2..39 j:5..55 k:23",
        "C[i - 2][j - 5] += A[i][k] * B[k][j];",
    ),
    "backwards": (*MATMUL, "C[36 - i][49 - j] += A[36 - i][22 - k] * B[k][j];"),
    "flat factors": (
        "C[37][50], A[851], B[1150]", "i:37 j:50 k:23", "C[i][j] += A[i * 23 + k] * B[k * 50 + j];",
    ),
    "two columns": (
        "C[7][5][50], A[7][23], B[23][5][50]", "i:7 x:5 y:50 k:23",
        "C[i][x][y] += A[i][k] * B[k][x][y];",
    ),
    "two columns apart": (
        "C[5][7][50], A[7][23], B[50][23][5]", "i:7 x:5 y:50 k:23",
        "C[x][i][y] += A[i][k] * B[y][k][x];",
    ),
    "batch": (
        "C[3][17][20], A[3][17][9], B[3][9][20]", "b:3 i:17 j:20 k:9",
        "C[b][i][j] += A[b][i][k] * B[b][k][j];",
    ),
    "two batches": (
        "S[2][5][19][18], Q[2][19][5][8], K[2][18][5][8]", "b:2 h:5 i:19 j:18 d:8",
        "S[b][h][i][j] += Q[b][i][h][d] * K[b][j][h][d];",
    ),
    "batch of matrix by vector": (
        "O[33][19], A[33][8][19], B[8][19]", "b:19 i:33 k:8", "O[i][b] += A[i][k][b] * B[k][b];",
    ),
    "1-D convolution": (
        "O[30][20], I[30], W[20][5]", "p:30 k:20 r:5", "O[p][k] += I[p + r - 2] * W[k][r];",
        "p + r >= 2 && p + r - 2 < 30",
    ),
    "filter turned": (
        "O[20][30], I[7][30], W[20][7][5]", "k:20 p:30 c:7 r:5",
        "O[k][p] += I[c][p - r + 2] * W[k][c][r];", "p - r >= -2 && p - r + 2 < 30",
    ),
    "one channel": (
        "O[8][12][13], I[12][13], W[8][3][3]", "k:8 p:12 q:13 r:3 s:3",
        "O[k][p][q] += I[p + r - 1][q + s - 1] * W[k][r][s];", IMAGE,
    ),
    "channels last": (
        "O[2][12][13][18], I[2][12][13][7], W[3][3][7][18]", "n:2 p:12 q:13 k:18 r:3 s:3 c:7",
        "O[n][p][q][k] += I[n][p + r - 1][q + s - 1][c] * W[r][s][c][k];", IMAGE,
    ),
    "dilated and strided": (
        "O[6][6][18], I[12][13][7], W[3][3][7][18]", "p:6 q:6 k:18 r:3 s:3 c:7",
        "O[p][q][k] += W[r][s][c][k] * I[2 * p + 3 * r - 2][2 * q + 2 * s - 1][c];",
        "2*p + 3*r - 2 >= 0 && 2*p + 3*r - 2 < 12 && 2*q + 2*s - 1 >= 0 && 2*q + 2*s - 1 < 13",
    ),
    "three dimensions": (
        "O[4][5][6][18], I[4][5][6][7], W[3][1][3][7][18]", "d:4 p:5 q:6 k:18 t:3 r:1 s:3 c:7",
        "O[d][p][q][k] += I[d + t - 1][p + r][q + s - 1][c] * W[t][r][s][c][k];",
        "d + t >= 1 && d + t - 1 < 4 && q + s >= 1 && q + s - 1 < 6",
    ),
    "groups": (
        "O[9][24], I[9][12], W[24][4]", "i:9 g:3 k:8 c:4",
        "O[i][g * 8 + k] += I[i][g * 4 + c] * W[g * 8 + k][c];",
    ),
    "depthwise": (
        "O[18][12][13], I[18][12][13], W[18][3][3]", "g:18 p:12 q:13 r:3 s:3",
        "O[g][p][q] += I[g][p + r - 1][q + s - 1] * W[g][r][s];", IMAGE,
    ),
    "batch that lies apart": (
        "O[4][1][2], A[9][6], B[1][2]", "p:4 t:2 j:1",
        "O[p][j][t] += A[2 * p][4 - 2 * t] * B[j][t];",
    ),
    "depthwise in batches": (
        "O[3][12][21], I[3][14][21], W[3][3][21]", "b:3 p:12 g:21 r:3",
        "O[b][p][g] += I[b][p + r][g] * W[r][b][g];",
    ),
    "one filter on a diagonal": (
        "C[20][20][17], A[20][20][3], B[5][3][17]", "i:20 l:20 j:17 r:5 c:3",
        "C[i][l][j] += A[i + r - 2][l + r - 2][c] * B[r][c][j];",
        "i + r >= 2 && i + r < 22 && l + r >= 2 && l + r < 22",
    ),
    "backward weights": (
        "W[8][4][3][3], E[2][8][5][5], I[2][4][7][7]", "k:8 c:4 r:3 s:3 n:2 p:5 q:5",
        "W[k][c][r][s] += E[n][k][p][q] * I[n][c][p + r][q + s];",
    ),
}  # fmt: skip
TEXTS = {name: c_text(*parts) for name, parts in _TABLE.items()}


def nest(name: str) -> Nest:
    """A row of the table as a problem of that name."""
    return Nest(TEXTS[name], name=name)


def textbook_c(problem: Problem, name: str = "nest") -> str:
    """Return the textbook nest of a problem as a C file; its region is marked."""
    text = ctree.text(CPrinter().function(replace(problem.nest(), name=name)))
    head, _, body = text.partition("{\n")
    inside = body.removesuffix("}")
    return f"#include <stdint.h>\n{head}{{\n#pragma scop\n{inside}#pragma endscop\n}}\n"
