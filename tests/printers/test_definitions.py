"""Of microkernel headers a generated file holds what its code reaches, and nothing else."""

import re
from pathlib import Path

import pytest

from polysci.printers.definitions import arrange, definitions, identifiers, reach, trim
from polysci.printers.headers import headers
from polysci.target.microkernels import HeaderSet
from tests.lower.direct.test_codegen import SCHEDULES, source_of

MICROKERNELS = Path(__file__).parents[2] / "microkernels"
HEADER = """\
/* Of everything. */
#include <stdint.h>

#if defined(__clang__)
#define LOOP "clang"
#else
#define LOOP "gcc"
#endif
enum { ONE = 1, TWO = 2 };
typedef struct {
    int first; /* never { closed */
} pair;
typedef int (*handler)(pair);
static inline __attribute__((unused)) int
twice(int x)
{
#ifndef NDEBUG
    return TWO * x;
#endif
}
/* Calls twice. */
static inline int fourfold(int x) { return twice(twice(x)); }
#define DEFINE(name) int made_##name(void) { return LOOP; }
DEFINE(it) /* twice */
#undef DEFINE
static const int table[2] = {1, 2};
int declared(handler h, int x);
"""


def names(text: str) -> list[str]:
    """Of the definitions that a text needs, those that have names."""
    return [name for one in reach([HEADER], text) for name in sorted(one.names)]


def test_a_header_is_cut_into_its_definitions() -> None:
    pieces = definitions(HEADER)
    assert "\n".join(piece.text for piece in pieces) + "\n" == HEADER
    assert [sorted(piece.names) for piece in pieces] == [
        [], ["LOOP"], ["ONE", "TWO"], ["pair"], ["handler"], ["twice"], ["fourfold"], ["DEFINE"],
        [], ["DEFINE"], ["table"], ["declared"],
    ]  # fmt: skip
    assert [piece.prototype for piece in pieces if piece.prototype] == [
        "static inline __attribute__((unused)) int\ntwice(int x);",
        "static inline int fourfold(int x);",
    ]


@pytest.mark.parametrize(
    ("text", "also"),
    [
        ("", []),
        ("int x = ONE;", ["ONE", "TWO"]),
        ("fourfold(1)", ["ONE", "TWO", "twice", "fourfold"]),
        ("/* fourfold */ table[0]", ["table"]),
        ("declared(0, 1)", ["pair", "handler", "declared"]),
    ],
)
def test_needed_definitions_are_those_reached(text: str, also: list[str]) -> None:
    """What makes names that no scan sees is always kept, with all that it uses."""
    kept = names(text)
    assert [name for name in kept if name not in ("LOOP", "DEFINE")] == also
    assert {"LOOP", "DEFINE"} <= set(kept)


@pytest.mark.parametrize("path", sorted(MICROKERNELS.glob("*.h")), ids=lambda path: path.stem)
def test_no_line_of_a_microkernel_header_is_lost(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "\n".join(piece.text for piece in definitions(text)).split() == text.split()


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_helper_in_a_file_is_used(name: str) -> None:
    source = source_of(name)
    whole = definitions(headers(source.header_set))
    called = identifiers(source.file)
    unused = {
        name
        for definition in definitions(source.file)
        for name in definition.names
        if definition.prototype.startswith("PS_") and source.file.count(name) < 2
    }
    assert not unused
    assert sum(bool(one.names & called) for one in whole) < len(whole)


def test_compiler_flags_stay_with_the_text() -> None:
    text = headers(HeaderSet("amx", "bf16", "bf16", "bf16"))
    first = text[: text.index("\n/*")] if text.startswith("/* compile with") else ""
    assert trim([text], "").startswith(first)


def test_no_file_includes_string_h() -> None:
    """Those of devices, which have none, define what others take from the compiler."""
    for path in {*MICROKERNELS.glob("*.h")} - {*MICROKERNELS.glob("prelude_*.h")}:
        text = path.read_text(encoding="utf-8")
        assert "string.h" not in text, path
        assert not re.search(r"(?<!__builtin_)\bmem(cpy|set|move)\b", text), path


def test_public_functions_come_before_the_helpers() -> None:
    """Types, macros and prototypes ahead of them; behind them what they call."""
    text = (
        "static int mine(int x) { return twice(x); }\nint both(pair p) { return mine(p.first); }\n"
    )
    arranged = arrange([HEADER], text)
    order = [
        "} pair;",
        "static int mine(int x);",
        "int both(",
        "twice(int x)\n{",
        "return twice(x)",
    ]
    places = [arranged.index(part) for part in order]
    assert places == sorted(places)
    assert "fourfold" not in arranged


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_entry_of_a_layer_is_near_the_top(name: str) -> None:
    source = source_of(name)
    head = source.file[: source.file.index(f"\nint {name}(", source.file.index(f"/* {name}: "))]
    assert head.count("\n") < 150


def test_no_routine_has_the_name_of_a_type() -> None:
    """A device's file holds routines beside all other headers."""
    own = (MICROKERNELS / "routines.h").read_text(encoding="utf-8")
    names = re.findall(r"^PS_\w+ [\w *]+?\b(ps_\w+)\(", own, re.MULTILINE)
    assert "ps_box_rows" in names
    for path in sorted(MICROKERNELS.glob("*.h")):
        if path.name != "routines.h":
            text = path.read_text(encoding="utf-8")
            types = re.findall(r"^(?:typedef .*|} )\b(ps_\w+);", text, re.MULTILINE)
            assert not {*names} & {*types}, path
