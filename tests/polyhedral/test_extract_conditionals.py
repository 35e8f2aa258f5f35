"""Conditionals and macros of C texts: what is read is what the compiler would compile."""

import shutil
from pathlib import Path

import pytest

from polysci.errors import SpecError
from polysci.polyhedral.extract import extract

SCOP = "#pragma scop\nfor (int i = 0; i < N; ++i) B[i] = 0;\n#pragma endscop\n"
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="a preprocessor evaluates these"
)


def extent(text: str, filename: str = "<nest>") -> int:
    """How far the loop of the one statement runs."""
    (statement,) = extract(text, filename=filename).statements
    return int(statement.domain.dim_max_val(0).to_python()) + 1


@needs_compiler
@pytest.mark.parametrize(
    "head",
    [
        "#if 0\n#define N 3\n#endif\n#define N 7\n",
        "#ifdef NOBODY_DEFINES_THIS\n#define N 3\n#else\n#define N 7\n#endif\n",
        "#define W\n#if defined(W) && \\\n  3 * 2 > 5\n#define N 7\n#else\n#define N 3\n#endif\n",
        "#ifndef GUARD\n#define GUARD\n#define N 7\n#endif\n",
        "#ifdef N\n#undef N\n#endif\n#define N 7\n",
        "#if 0\nit isn't C /* at all */\nfloat B[3];\n#elif 1\n#define N 7\n#endif\n",
        f"#define N 7\n#if 0\n{SCOP.replace('N', '3')}#endif\n",
        "/*\n#if 0\n*/\n#define N 7\n#if 0 /* 1\n*/\n#undef N\n#endif\n",
    ],
)
def test_conditionals_are_evaluated(head: str) -> None:
    assert extent(f"{head}float B[9];\n{SCOP}") == 7


@needs_compiler
def test_conditions_see_included_macros_and_the_region_may_hold_conditionals(
    tmp_path: Path,
) -> None:
    (tmp_path / "sizes.h").write_text("#define WIDE 1\n")
    text = (
        '#include "sizes.h"\nfloat B[9];\n#pragma scop\n#if WIDE\n'
        "for (int i = 0; i < 7; ++i)\n#else\nfor (int i = 0; i < 3; ++i)\n#endif\n  B[i] = 0;\n"
        "#pragma endscop\n"
    )
    assert extent(text, str(tmp_path / "nest.c")) == 7


@needs_compiler
def test_places_are_those_of_the_text() -> None:
    with pytest.raises(SpecError, match=r"bad\.c:6:28: .*\n    for .* B\[i \* i\] = 0;\n {31}\^"):
        extract(
            "#if 1\n#define N 3\n#endif\nfloat B[9];\n#pragma scop\n"
            "for (int i=0; i<N; ++i)  B[i * i] = 0;\n#pragma endscop\n",
            filename="bad.c",
        )


@needs_compiler
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"#if 0\nfloat B[9];\n{SCOP}#endif\n", "no #pragma scop found"),
        (f"#if 1\n{SCOP}", r"^x\.c:1:1: #if 1: the C preprocessor refuses the file: unterminated"),
        (f"#if 1\n#include <no/such.h>\n#endif\n{SCOP}", r"refuses the file: .*no/such\.h"),
    ],
)
def test_what_the_compiler_would_not_compile(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        extract(text, filename="x.c")


def test_a_macro_that_is_undefined_again_is_named() -> None:
    with pytest.raises(SpecError, match="the macro N is undefined again by #undef"):
        extract(f"#define N 3\nfloat B[N];\n#undef N\n#define N 7\n{SCOP}")
    assert extent(f"#undef N\n#define N 7\nfloat B[N];\n{SCOP}#undef N\n#define N 3\n") == 7


def test_a_macro_that_is_defined_after_the_region_is_none_in_it() -> None:
    with pytest.raises(SpecError, match="N is neither an iterator"):
        extract(f"float B[9];\n{SCOP}#define N 3\n")


def test_without_a_compiler_the_conditional_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SpecError, match=r"^<nest>:2:1: #ifdef BIG: a C compiler is needed"):
        extract(f"float B[9];\n#ifdef BIG\n#define N 3\n#endif\n{SCOP}")
    assert extent(f"#define N 7\nfloat B[9];\n{SCOP}") == 7
    monkeypatch.setenv("CC", "/no/such/compiler")
    with pytest.raises(SpecError, match=r"#ifdef BIG: the C preprocessor cannot be run"):
        extract(f"float B[9];\n#ifdef BIG\n#endif\n{SCOP}")
