"""extract: everything it refuses, with the place and the reason."""

from __future__ import annotations

import time

import pytest

from polysci.errors import SpecError, UnsupportedError
from polysci.polyhedral.extract import extract

ARRAYS = "float A[100][100], B[100], C[10000];"


def region(body: str, before: str = ARRAYS) -> str:
    return f"{before}\n#pragma scop\n{body}\n#pragma endscop\n"


def test_the_message_points_at_the_expression() -> None:
    text = (
        "float A[9];\n#pragma scop\nfor (int i = 0; i < 3; ++i)\n\tA[i * i] = 0;\n#pragma endscop\n"
    )
    with pytest.raises(SpecError) as caught:
        extract(text, filename="square.c")
    place, line, caret, rule = str(caught.value).splitlines()
    assert place == "square.c:4:4: a product of two values that both vary is not affine"
    assert line == "    \tA[i * i] = 0;" and caret == "    \t  ^"
    assert rule.startswith("Subscripts, bounds and guards are affine")


LOOP = "for (int i = 0; i < 9; ++i) "
REFUSED = {
    LOOP + "B[A[i][i]] = 0;": "an array element is not affine",
    LOOP + "B[f(i)] = 0;": "a function call is not affine",
    LOOP + "B[i] = f(i);": "a function call in a value",
    LOOP + "B[i] = B[i = 2];": "an assignment inside an expression",
    LOOP + "B[i] = C[i++];": r"the operator \+\+ is not affine",
    LOOP + "B[i] = C[i, 2];": "a comma expression",
    LOOP + "B[i] = *C;": r"the operator \* in a value",
    LOOP + "B[i] = &C[0] != 0;": "the operator & in a value",
    LOOP + "B[i & 3] = 0;": "the operator & is not affine",
    LOOP + "B[i / 0] = 0;": "by anything but a positive constant",
    LOOP + "B[8 % i] = 0;": "by anything but a positive constant",
    LOOP + "B[(int)i] = 0;": "a cast is not affine",
    LOOP + "B[1.5] = 0;": "not an integer literal",
    LOOP + "B[i - 0u] = 0;": "an unsigned literal",
    LOOP + "if (i - 0xFFFFFFFF < 0) B[i] = 0;": "0xFFFFFFFF: an unsigned literal",
    LOOP + "if (i - 037777777777 < 0) B[i] = 0;": "037777777777: an unsigned literal",
    LOOP + "if (i - WIDE < 0) B[i] = 0;": "the macro WIDE is unsigned: an unsigned literal",
    LOOP + "if (i - NINE < 0) B[i] = 0;": "the macro NINE is unsigned: an unsigned literal",
    LOOP + "B[i - 0xFFFFFFFFFFFFFFFFL] = 0;": "an unsigned literal",
    LOOP + "B[i - 08] = 0;": "not C as we read it|not an integer literal",
    LOOP + "B[i - 'a'] = 0;": "'a': not an integer literal",
    LOOP + "B[i - 0x1p3] = 0;": "0x1p3: not an integer literal",
    LOOP + "B[i - 1'000'000] = 0;": "not an integer literal",
    LOOP + "B[99999999999999999999] = 0;": "64 bits",
    LOOP + "B[0x10000000000000000] = 0;": "64 bits",
    LOOP + "B[m] = 0;": "m is neither an iterator",
    LOOP + "D[i] = 0;": "D is not declared",
    LOOP + "B[i] = beta;": "beta is not declared",
    LOOP + "B[i] = i; B[0] = i;": "i is the iterator of a loop that does not enclose this",
    LOOP + "B = 0;": "B has 1 dimensions, not 0",
    LOOP + "A[i] = 0;": "A has 2 dimensions, not 1",
    LOOP + "B[i][0] = 0;": "B has 1 dimensions, not 2",
    LOOP + "(B + 1)[i] = 0;": "only plain arrays",
    LOOP + "P[i] = 0;": r"P is declared as float \*P",
    LOOP + "Q[i] = 0;": r"Q is declared as float Q\[3\] and as float Q\[4\]",
    LOOP + "V[i] = 0;": "the extent 'n' of V is not a positive integer",
    LOOP + "B[i + 92] = 0;": "subscript 0 of B is 100 at i = 8",
    LOOP + "B[-1] = 0;": "subscript 0 of B is -1",
    LOOP + "i = 3;": "an assignment to an iterator",
    LOOP + "M = 3;": "an assignment to a macro",
    LOOP + "B[i] /= 3;": "the assignment /=",
    LOOP + "B[i]++;": "an increment or another operator as a statement",
    LOOP + "B[i];": "a statement without effect",
    LOOP + "f(i);": "a function call in the region",
    LOOP + "break;": "break in the region",
    LOOP + "continue;": "continue in the region",
    LOOP + "return;": "return in the region",
    LOOP + "goto out;": "goto in the region",
    "out: B[0] = 0;": "a label in the region",
    "while (1) B[0] = 0;": "while in the region",
    "do B[0] = 0; while (0);": r"do \.\.\. while",
    "switch (1) { case 1: B[0] = 0; }": "switch",
    "float D[4];": "this declaration in the region",
    "float *p;": "this declaration in the region",
    LOOP + "{ float i = 0; }": "the name i is taken",
    LOOP + LOOP + "B[i] = 0;": "i is the iterator of a loop around this",
    "for (int M = 0; M < 3; ++M) B[0] = 0;": "M is a macro",
    "for (int mod = 0; mod < 3; ++mod) B[0] = 0;": "a word of isl's notation",
    "for (int B = 0; B < 3; ++B) B[0] = 0;": "only plain arrays|is the iterator",
    "for (unsigned i = 9; i >= 0; --i) B[i] = 0;": "the type of the iterator i",
    "for (u = 9; u >= 0; --u) B[u] = 0;": "u is declared unsigned",
    "for (float i = 0; i < 3; ++i) B[0] = 0;": "the type of the iterator",
    "for (int8_t i = 0; i < 300; ++i) B[0] = 0;": "the type of the iterator",
    "for (int i = 0; i < 3; i *= 2) B[0] = 0;": "does not change i by a constant",
    "for (int i = 0; i < 3; i += i) B[0] = 0;": "neither an iterator",
    "for (int i = 0; i < 3; i += 0) B[0] = 0;": "stands still",
    "for (int i = 0; i < 3;) B[0] = 0;": "does not change i",
    "for (int i = 0; ; ++i) B[0] = 0;": "without a condition",
    "for (; ; ) B[0] = 0;": "a loop without one",
    "for (int i = 0, j = 0; i < 3; ++i) B[0] = 0;": "a loop without one",
    "for (int i = 0; i < 3; --i) B[0] = 0;": "in the direction of its step, -1",
    "for (int i = 0; i != 3; ++i) B[0] = 0;": "in the direction of its step, 1",
    "for (int i = 0; 3; ++i) B[0] = 0;": "in the direction",
    "for (int i = 0; i / 2 < 3; ++i) B[0] = 0;": "in the direction",
    "for (int i = 0; i % 5 < 3; ++i) B[0] = 0;": "in the direction",
    "for (int i = 0; i * i < 9; ++i) B[0] = 0;": "a product of two values",
    "for (int i = i; i < 9; ++i) B[0] = 0;": "i is neither an iterator",
    "if (B[0] > 0) B[0] = 0;": "an array element is not affine",
    "NOT_INT B[0] = 0;": "the macro NOT_INT is not an integer constant",
    "B[HUGE] = 0;": "the macro HUGE = 9223372036854775808 does not fit in 64 bits",
    "B[TWICE] = 0;": "defined twice: 3 and 4",
    "#define X 1\nB[0] = X;": "a preprocessor directive inside the region",
    "B[0] = 0": "unexpected|ends inside",
    "B[0] = ;": "not C as we read it",
    "B[0] = @;": "not C as we read it",
    "B[0] = 'x;": "not C as we read it",
    "for (int i = 0; i < 3; ++i) {": "the region ends inside",
    "} void other(void) {": "ends the region too early",
    'asm("nop");': "asm inside the region",
    "B[0] = n\u00e9;": "the character",
    "B[" + "(" * 99 + "0" + ")" * 99 + "] = 0;": "brackets nested deeper than 64",
    "B[" + "- " * 9000 + "0] = 0;": "nested too deeply",
    "B[" + "0 + " * 9000 + "0] = 0;": "nested too deeply",
    "if (1) " * 4000 + "B[0] = 0;": "nested too deeply",
    "B[0] = 0;" * 300: "more than 256 statements",
    "B[0] = 0;" * 9000: "a region of 81002 characters",
    "".join(f"for (int i{n} = 0; i{n} < 2; ++i{n}) " for n in range(25))
    + ";": "more than 24 loops",
}


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: " ".join(body.split())[:48])
def test_refused_with_a_place(body: str) -> None:
    before = (
        f"{ARRAYS} float *P, Q[3]; void g(float Q[4]) {{}} float V[n]; unsigned u;\n"
        "#define M 3\n#define HUGE 9223372036854775808\n"
        "#define WIDE (0x80000000)\n#define NINE 9u\n"
        "#define NOT_INT double\n#define TWICE 3\n#define TWICE 4"
    )
    with pytest.raises(SpecError, match=REFUSED[body]) as caught:
        extract(region(body, before), filename="bad.c")
    message = str(caught.value)
    assert message.startswith("bad.c:") and len(message) < 700
    if "too deeply" not in message:
        assert message.splitlines()[2].strip() == "^"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no #pragma scop found"),
        ("#pragma scop\nx = 0;", "is never ended"),
        ("#pragma endscop\n", "without a scop"),
        ("#pragma scop\n#pragma scop\n#pragma endscop\n", "a scop inside a scop"),
        ("#pragma scop\n#pragma endscop\n" * 2, "a second region"),
        ("/* #pragma scop\n", "this comment is never closed"),
        ("#define for while\n#pragma scop\n#pragma endscop\n", "#define of the keyword for"),
        (" " * 2_000_000, "at most 1048576 are read"),
    ],
)
def test_a_file_without_one_region(text: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        extract(text)


@pytest.mark.parametrize(
    "shapes", [{"A b": (1,)}, {"for": (1,)}, {"A": (0,)}, {"A": (2**62, 4)}, {"A": (1.5,)}]
)
def test_given_arrays_are_checked(shapes: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(SpecError, match="arrays: "):
        extract(region("A[0] = 0;", ""), arrays=shapes)


def test_given_arrays_agree_with_the_text() -> None:
    with pytest.raises(SpecError, match=r"declared with the extents \(100,\), but given \(9,\)"):
        extract(region("B[0] = 0;"), arrays={"B": (9,)})
    assert extract(region("B[0] = 0;"), arrays={"B": (100,)}).array("B").shape == (100,)


@pytest.mark.exhaustive
def test_work_is_bounded() -> None:
    guards = " || ".join(f"(i * {n} + j) % {n + 2} != {n}" for n in range(3, 300))
    nest = f"for (int i = 0; i < 99; ++i) for (int j = 0; j < 99; ++j) if ({guards}) B[i] = 0;"
    start = time.perf_counter()
    with pytest.raises(UnsupportedError, match="isl gave up"):
        extract(region(nest))
    assert time.perf_counter() - start < 60
