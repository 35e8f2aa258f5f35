"""extract: which integer literals it reads, with the values and the signs that C gives them."""

import random
import subprocess
from pathlib import Path

import pytest

from polysci.errors import SpecError
from polysci.polyhedral.extract import extract
from polysci.polyhedral.extract.source import integer, is_unsigned

EDGES = [0, 1, 7, 8, 9, *(x for bits in (31, 32, 63) for x in (2**bits - 1, 2**bits)), 2**64 - 1]
SUFFIXES = ["", "l", "L", "ll", "LL", "u", "U", "ul", "uL", "lu", "LLU", "ull"]


def literals() -> list[str]:
    """Those around the ends of C's types and random ones, in every base, with every suffix."""
    draw = random.Random(0)
    values = [*EDGES, *(draw.getrandbits(draw.randrange(1, 65)) for _ in range(60))]
    forms = ["0x{:x}", "0X{:X}", "0{:o}", "0b{:b}", "0x00{:x}"]
    decimal = ["{}"]  # without a suffix no type of C holds a larger one
    return [
        form.format(value) + suffix
        for value in values
        for suffix in SUFFIXES
        for form in forms + decimal * (value < 2**63 or "u" in suffix.lower())
    ]


@pytest.mark.exhaustive
def test_values_and_signs_are_those_of_the_compiler(tmp_path: Path) -> None:
    every = literals()
    rows = "".join(f"    say({text}, (({text}) & 0) - 1 > 0);\n" for text in every)
    (tmp_path / "signs.c").write_text(
        "#include <stdio.h>\n"
        'static void say(unsigned long x, int s) { printf("%lu %d\\n", x, s); }\n'
        f"int main(void)\n{{\n{rows}    return 0;\n}}\n"
    )
    subprocess.run(["cc", "-o", "signs", "signs.c"], cwd=tmp_path, check=True, timeout=120)
    told = subprocess.run(
        [tmp_path / "signs"], capture_output=True, text=True, check=True, timeout=60
    )
    for text, line in zip(every, told.stdout.splitlines(), strict=True):
        value, unsigned = map(int, line.split())
        assert is_unsigned(text) == bool(unsigned), text
        assert integer(text, {}) == (None if unsigned else value), text
        assert integer(f"(-{text})", {}) == (None if unsigned else -value), text


@pytest.mark.parametrize(
    "text", ["08", "0x", "0b2", "1lL", "9uu", "9ulu", "'a'", "1.0", "0x1p3", "1'0"]
)
def test_no_integer_literal(text: str) -> None:
    assert integer(text, {}) is None and not is_unsigned(text)


@pytest.mark.parametrize("text", ["0x80000000L", "0x7FFFFFFF", "0b101", "0777", "2147483648"])
def test_signed_literals_are_read(text: str) -> None:
    """In guards, bounds, subscripts and extents, and by #define."""
    value = int(text.rstrip("L"), 8 if text.startswith("07") else 0)
    for name, define in ((text, ""), ("N", f"#define N {text}\n")):
        scop = extract(
            f"{define}float B[{name}];\n#pragma scop\n"
            f"for (long i = {name} - 3; i < {name}; ++i) if (i - {name} < -1) B[i] = 0;\n"
            "#pragma endscop\n"
        )
        (write,) = scop.statements
        assert write.domain.dim_max_val(0).to_python() == value - 2
        assert scop.array("B").shape == (value,)


@pytest.mark.parametrize("text", ["0xFFFFFFFF", "020000000000", "9u", "0x8000000000000000L"])
def test_an_unsigned_extent_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=f"the extent '{text}' of B"):
        extract(f"float B[{text}];\n#pragma scop\nB[0] = 0;\n#pragma endscop\n")
