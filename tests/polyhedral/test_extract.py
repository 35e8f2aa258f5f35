"""extract: what it reads, in which order, and what it refuses where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cgen
import islpy as isl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polysci.errors import SpecError
from polysci.polyhedral.extract import extract
from polysci.polyhedral.scop import Scop, Statement

DATA = Path(__file__).parents[1] / "data"
ARRAYS = "float A[100][100], B[100], C[10000];"


def region(body: str, before: str = ARRAYS) -> str:
    return f"{before}\n#pragma scop\n{body}\n#pragma endscop\n"


def in_order(scop: Scop) -> list[tuple[str, tuple[int, ...]]]:
    """Statement and iterators of every iteration, in the order of the schedule."""
    found = []
    for statement in scop.statements:
        depth = len(statement.iterators)
        for point in _points(statement):
            found.append((point[depth:], statement.name, point[:depth]))
    return [(name, iteration) for _, name, iteration in sorted(found)]


def _points(statement: Statement) -> list[tuple[int, ...]]:
    points: list[tuple[int, ...]] = []
    wrapped = statement.schedule.intersect_domain(statement.domain).wrap()
    dims = range(wrapped.dim(isl.dim_type.set))
    wrapped.foreach_point(
        lambda p: points.append(
            tuple(p.get_coordinate_val(isl.dim_type.set, d).to_python() for d in dims)
        )
    )
    return points


def test_convolution() -> None:
    scop = extract((DATA / "conv2d.c").read_text(), filename="conv2d.c")
    (statement,) = scop.statements
    assert scop.name == "conv2d.c"
    assert statement.iterators == ("n", "g", "k", "p", "q", "c", "r", "s")
    assert [array.shape for array in map(scop.array, "OIW")] == [
        (1, 16, 112, 112),
        (1, 8, 224, 224),
        (16, 4, 7, 7),
    ]
    assert [(a.kind, a.array) for a in statement.accesses] == [
        ("read", "O"),
        ("read", "I"),
        ("read", "W"),
        ("write", "O"),
    ]
    expected = isl.Set(
        "{ S0[n,g,k,p,q,c,r,s] : n = 0 and 0 <= g < 2 and 0 <= k < 8 and 0 <= p,q < 112 and"
        " 0 <= c < 4 and 0 <= r,s < 7 and 0 <= 2p + r - 3 < 224 and 0 <= 2q + s - 3 < 224 }"
    )
    assert statement.domain.is_equal(expected)
    image = isl.Map("{ S0[n,g,k,p,q,c,r,s] -> I[n, 4g + c, 2p + r - 3, 2q + s - 3] }")
    assert statement.accesses[1].map.is_equal(image)
    assert statement.box.is_box() and not statement.domain.is_equal(statement.box)
    assert statement.line == 22 and statement.reduction == "+"
    assert statement.text.startswith("O[n][g * 8 + k][p][q] = O[n]")


def test_text_form_is_isl() -> None:
    scop = extract((DATA / "matmul.c").read_text())
    words = dict(line.split(" ", 1) for line in str(scop).splitlines())
    assert isl.UnionSet(words["domain"]).is_equal(scop.domain())
    assert isl.UnionMap(words["reads"]).is_equal(scop.reads())
    assert isl.UnionMap(words["writes"]).is_equal(scop.writes())
    assert isl.UnionMap(words["schedule"]).is_equal(scop.schedule())


def test_imperfect_nest_keeps_its_order() -> None:
    text = region(
        """B[0] = 1;
        for (int i = 0; i < 2; ++i) {
          B[i] = 2;
          if (i == 1) { for (int j = 2; j > 0; --j) B[j] = 3; } else B[5] = 4;
          B[7] = 5;
        }
        B[9] = 6;"""
    )
    assert in_order(extract(text)) == [
        ("S0", ()),
        ("S1", (0,)),
        ("S3", (0,)),
        ("S4", (0,)),
        ("S1", (1,)),
        ("S2", (1, 2)),
        ("S2", (1, 1)),
        ("S4", (1,)),
        ("S5", ()),
    ]


@dataclass(frozen=True)
class Expression:
    """C text whose value Python computes alike, given the iterators."""

    text: str

    def value(self, **iterators: int) -> int:
        return int(eval(self.text.replace("/", "|"), {}, {n: C(v) for n, v in iterators.items()}))


class C(int):
    """An integer with C's operators; ``|`` stands for its division, which truncates."""

    def __add__(self, other: int) -> C:
        return C(int(self) + other)

    def __sub__(self, other: int) -> C:
        return C(int(self) - other)

    def __mul__(self, other: int) -> C:
        return C(int(self) * other)

    def __or__(self, other: int) -> C:
        return C(abs(self) // other if self >= 0 else -(abs(self) // other))

    def __mod__(self, other: int) -> C:
        return C(int(self) - (self | other) * other)


def affine(*names: str) -> st.SearchStrategy[Expression]:
    small = st.integers(-3, 3)
    leaf = st.sampled_from(names)
    plain = st.builds(lambda n, a, b: f"({n} * {a} + {b})", leaf, small, small)
    divided = st.builds(
        lambda e, op, d: f"({e} {op} {d})", plain, st.sampled_from("/%"), st.integers(1, 4)
    )
    joined = st.builds(lambda a, op, b: f"({a} {op} {b})", plain, st.sampled_from("+-"), divided)
    return st.one_of(plain, divided, joined).map(Expression)


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None)
@given(
    low=st.integers(-4, 4),
    step=st.sampled_from([1, 2, 3, -1, -2]),
    inner=affine("i"),
    guard=affine("i", "j"),
    sign=st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
    subscript=affine("i", "j"),
)
def test_same_iterations_as_the_text(
    low: int, step: int, inner: Expression, guard: Expression, sign: str, subscript: Expression
) -> None:
    """Domain, order and bounds agree with executing the nest, whatever the affine parts are."""
    high = low + 4 * step
    outer = f"for (int i = {low}; i {'<' if step > 0 else '>'} {high}; i += {step})"
    text = region(
        f"{outer} for (int j = {inner.text}; j < 6; j++)"
        f" if ({guard.text} {sign} 1) T[{subscript.text}] = 0;",
        before="float T[8];",
    )
    executed = [
        (i, j)
        for i in range(low, high, step)
        for j in range(inner.value(i=i), 6)
        if eval(f"{guard.value(i=i, j=j)} {sign} 1")
    ]
    if all(0 <= subscript.value(i=i, j=j) < 8 for i, j in executed):
        assert in_order(extract(text)) == [("S0", point) for point in executed]
        return
    with pytest.raises(SpecError, match="subscript 0 of T is"):
        extract(text)


def test_every_form_of_loop_guard_and_subscript() -> None:
    text = region(
        """int i;
        for (i = 10; 2 <= i && i > 0; i -= 4)
          if (!(i == 2) || i > 90) A[i / 2][i % 3] = 0;
        for (long j = 0; j < (i_max < 3 ? i_max : 3); j += 1) { ; B[j > 1 ? 0 : 5] *= -1.5f; }
        """,
        before=ARRAYS + "\n#define i_max 0x10\n",
    )
    scop = extract(text)
    assert in_order(scop) == [("S0", (10,)), ("S0", (6,)), *[("S1", (j,)) for j in range(3)]]
    elements = scop.writes().range()
    assert elements.is_equal(isl.UnionSet("{ A[5, 1]; A[3, 0]; B[0]; B[5] }"))


def test_values_read_what_they_may() -> None:
    text = region(
        """for (int i = 0; i < 9; ++i) {
          B[i] = i > 0 ? B[i - 1] : C[0];
          C[i] = B[i] > 0.0f ? (float)A[i][i] : -alpha;
          float t = 2 * i;
          B[i] = t;
        }""",
        before=ARRAYS + "\nfloat alpha;",
    )
    scop = extract(text)
    expected = isl.UnionMap(
        "{ S0[i] -> B[i - 1] : 0 < i < 9; S0[0] -> C[0];"
        " S1[i] -> B[i] : 0 <= i < 9; S1[i] -> A[i, i] : 0 <= i < 9;"
        " S1[i] -> alpha[] : 0 <= i < 9; S3[i] -> t[] : 0 <= i < 9 }"
    )
    assert scop.reads().is_equal(expected)
    assert {str(array) for array in scop.arrays} >= {"float alpha", "float t"}


@pytest.mark.parametrize(
    ("value", "reduction", "factors"),
    [
        ("X[i] = X[i] + B[j] * C[i];", "+", 2),
        ("X[i] = B[j] * C[i] + X[i];", "+", 2),
        ("X[i] += B[j] * C[i];", "+", 2),
        ("X[i] += B[j] * C[i] + 1;", "+", 0),
        ("X[i] = B[j] - 1 + X[i] - C[j];", "+", 0),
        ("X[i] -= B[j] * C[i];", "+", 0),
        ("X[i] = X[i] - B[j] * C[i];", "+", 0),
        ("X[i] *= B[j];", "*", 0),
        ("X[i] = 2 * B[j] * X[i];", "*", 0),
        ("X[i] = B[j] * C[i];", "", 2),
        ("X[i] = B[j] - X[i];", "", 0),
        ("X[i] = X[i] + X[j];", "", 0),
        ("X[i] += X[i];", "", 0),
        ("X[i] = X[j] + B[j];", "", 0),
        ("X[i] = 2 * (X[i] + B[j]);", "", 0),
        ("H[i] += B[j];", "", 0),
        ("H[i] += 0.5;", "", 0),
        ("H[i] += 3;", "+", 0),
    ],
)
def test_reductions(value: str, reduction: str, factors: int) -> None:
    nest = f"for (int i = 0; i < 4; ++i) for (int j = 0; j < 4; ++j) {value}"
    (statement,) = extract(region(nest, ARRAYS + "float X[4]; int H[4];")).statements
    assert (statement.reduction, len(statement.factors)) == (reduction, factors)


def test_cgen_tree() -> None:
    def loop(name: str, extent: int, body: cgen.Generable) -> cgen.For:
        heads = (f"int64_t {name} = 0", f"{name} < {extent}", f"++{name}")
        start, end, step = map(cgen.Line, heads)
        return cgen.For(start, end, step, body)

    statement = cgen.Assign("C[i][j]", "C[i][j] + A[i][k] * B[k][j]")
    tree = loop("i", 4, loop("j", 5, loop("k", 6, statement)))
    scop = extract(tree, arrays={"A": (4, 6), "B": (6, 5), "C": [4, 5]})
    assert [str(array) for array in scop.arrays] == [
        "float C[4][5]",
        "float A[4][6]",
        "float B[6][5]",
    ]
    assert scop.domain().is_equal(
        isl.UnionSet("{ S0[i,j,k] : 0 <= i < 4 and 0 <= j < 5 and 0 <= k < 6 }")
    )
    with pytest.raises(SpecError, match=r"<nest>:5:\d+: subscript 1 of A is 5 at i = "):
        extract(tree, arrays={"A": (4, 5), "B": (6, 5), "C": (4, 5)})
    with pytest.raises(TypeError, match="C text or a cgen tree, got int"):
        extract(5)  # type: ignore[arg-type]


def test_the_rest_of_the_file_may_be_any_c() -> None:
    text = """
    #include <stdio.h>
    #define FOR(i) for (;;)
    typedef struct { float *a; } box_t; // float B[3];
    static inline void fill(box_t *b, float X[static 4]) { FOR(1) b->a[0] = X[0] * 2; }
    const char *s = "float B[4]; #pragma scop"; double B[5], other[] = {1, 2};
    int main(void) { float Y[2][3] = {{0}};
    #pragma scop
      B[4] = Y[1][2];
    #pragma endscop
      return printf("%f", B[0]); }
    """
    assert [str(a) for a in extract(text).arrays] == ["double B[5]", "float Y[2][3]"]
