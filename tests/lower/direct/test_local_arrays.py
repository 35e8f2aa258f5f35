"""Arrays of functions are aligned: GCC 12 at -O3 writes others as if they were, and crashes."""

import re
from pathlib import Path
from random import Random

import numpy as np
import pytest

from polysci import notation
from polysci.frontends.notation.elaborate import elaborate
from polysci.frontends.notation.graphs import graph_of_comprehension
from polysci.frontends.notation.parser import parse
from polysci.network.compiled import plan_network
from polysci.network.options import PlanOptions
from polysci.network.prepare import prepare
from polysci.target.host import detect
from tests.support.flags import compiler_at
from tests.support.random_programs import random_program

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("microkernels", "polysci", "tests/golden")
FILES = [
    path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.[ch]"))
    if not path.stem.endswith(("_cuda", "_opencl"))  # which GCC does not take
]  # fmt: skip
ALIGNED = "_Alignas(64) "
# A type of one or more words, a name, extents: a line that declares an array.
ARRAY = re.compile(
    r"(?!(?:return|goto|else|case|typedef|static|extern|_Alignas)\b)(?:\w+ )+(?:\*(?:const )?)?"
    r"@?\w+@?(?:\[[^][]*\])+(?: =.*|[;,].*)"
)
HOLDER = re.compile(r"\bstruct[^{}]*\{([^{}]*\[[^{}]*)\}\s*(\w+);")
NOT_CODE = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def holders(text: str) -> set[str]:
    """The structures that hold an array and have no alignment of their own."""
    return {name for held, name in HOLDER.findall(NOT_CODE.sub("0", text)) if ALIGNED not in held}


HOLDERS = set[str]().union(*(holders(path.read_text()) for path in FILES))


def unaligned(text: str) -> list[str]:
    """Local arrays, and local structures that hold one, whose declarations align nothing."""
    names = "|".join(HOLDERS | holders(text))
    of_holder = re.compile(rf"(?:const )?(?:{names}) \w+(?: =.*|[;,].*)")
    text = NOT_CODE.sub("0", text)
    inside: list[bool] = []  # of structure or code, for every brace that is open
    found, before = [], ""
    for line in (line.strip() for line in text.splitlines()):
        local = inside and not any(inside)
        if local and (ARRAY.fullmatch(line) or of_holder.fullmatch(line)):
            found.append(line)
        for at, mark in enumerate(line):
            if mark == "{":
                head = f"{before} {line[:at]}".strip()
                inside.append(bool(re.search(r"\b(struct|union|enum)\b[^(){};=]*$", head)))
            elif mark == "}" and inside:
                inside.pop()
        before = line or before
    return found


def printed(program: str) -> str:
    """The C of a comprehension."""
    graph, _ = graph_of_comprehension(elaborate(parse(program), ""), {})
    options = PlanOptions("estimate", 1, "f32", "direct", detect())
    return "\n".join(plan_network(prepare(graph), options, "f").code.files.values())


@pytest.mark.parametrize(
    "line",
    [
        "int64_t acc[6];", "float t[3 * N], u[2] = {0};", "void *const at[] = {a, b};",
        "unsigned char held[4];", "const float clamp[2] = {1,", "pair p;", "const pair p = {0};",
    ],
)  # fmt: skip
def test_what_is_looked_for_is_noticed(line):
    text = "typedef struct {\n    int at[2];\n} pair;\nstatic void f(void)\n{\n    %s\n}\n"
    assert unaligned(text % line) == [line]
    assert unaligned(text % f"{ALIGNED}{line}") == unaligned(text % f"static {line}") == []


def test_local_arrays_are_aligned_in_files():
    assert len(FILES) > 100
    faults = [f"{path}: {line}" for path in FILES for line in unaligned(path.read_text())]
    assert not faults, "\n".join(faults)


@pytest.mark.exhaustive
def test_local_arrays_are_aligned_in_printed_programs():
    random = Random(33)
    programs = [printed(random_program(random)) for _ in range(12)]
    assert sum(ALIGNED in text.partition("PS_LOOP")[2] for text in programs) > 2
    assert [line for text in programs for line in unaligned(text)] == []


@pytest.mark.parametrize("kind", ["uint8", "double"])
def test_columns_of_six_at_the_optimisation_of_users(kind, monkeypatch):
    """Sums of six columns that stay in the red zone of a function that calls none."""
    monkeypatch.setenv("CC", compiler_at("-O3"))
    text = f"def f({kind}(N) B) -> (O) {{ O(k,i) +=! B(j) + k + B(i) where k in 0:2 }}"
    function = notation.compile(text, {"N": 6}, level="estimate")
    b = np.arange(6).astype(function.network.inputs[0].dtype)
    expected = [[b.sum() + 6 * (k + i) for i in range(6)] for k in range(2)]
    np.testing.assert_array_equal(function(b), expected)
