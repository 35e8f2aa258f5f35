"""The shape of the project: sizes of files and functions, names, docstrings, what must not leak."""

import ast
import gc
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.support import house

ROOT = Path(__file__).parents[2]
FILE_LINES, FUNCTION_LINES = 800, 60
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
VAGUE = {"utils", "helpers", "common", "core", "base", "misc"}
PYTHON = sorted(
    p
    for part in ("polysci", "tests", "experiments", "examples", "docs")
    for p in (ROOT / part).rglob("*.py")
)
PACKAGE = [path for path in PYTHON if path.is_relative_to(ROOT / "polysci")]

# Paths of somebody's machine, notes to oneself, references that a reader cannot follow.
LEAKS = re.compile(
    r"/(?:work|root|home/\w+|Users/\w+)/|\b(?:T[O]DO|F[I]XME|X[X]X)\b|\b[Ii]ssue (?:#|no\. )?\d"
)


# Beginnings of docstrings that do not say what a thing is or does.
RIDDLE = re.compile(r"(?:What|Whether|Of|The same|Which|Where|Whose|By|In|For|From|As|With)\b")


@pytest.fixture(autouse=True, scope="module")
def no_collections() -> Iterator[None]:
    """Syntax trees have no cycles: collections of garbage would double the time of parsing."""
    gc.disable()
    yield
    gc.enable()


@dataclass(frozen=True, slots=True)
class Definition:
    """A module, class or function in a file: how long it is and what it says of itself."""

    path: Path
    kind: type[ast.AST]
    name: str
    line: int
    lines: int
    docstring: str


@cache
def definitions() -> tuple[Definition, ...]:
    """All definitions of all files, each of which is read once: that takes seconds."""
    return tuple(
        Definition(
            path, type(node), getattr(node, "name", ""), line := getattr(node, "lineno", 1),
            (getattr(node, "end_lineno", None) or line) - line + 1, ast.get_docstring(node) or "",
        )
        for path in PYTHON
        for node in house.defining_nodes(ast.parse(path.read_text(encoding="utf-8")))
    )  # fmt: skip


def in_package() -> Iterator[Definition]:
    """The definitions of the package, but for the files of exported packages."""
    for its in definitions():
        if its.path.is_relative_to(ROOT / "polysci") and "templates" not in its.path.parts:
            yield its


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_something_to_check() -> None:
    assert len(PACKAGE) > 40 and len(PYTHON) > len(PACKAGE) + 20


def test_files_and_functions_stay_small() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PYTHON}
    assert not {name(path): lines for path, lines in lengths.items() if lines > FILE_LINES}
    functions = (its for its in definitions() if its.kind in FUNCTIONS)
    large = [its for its in functions if its.lines > FUNCTION_LINES]
    assert not [f"{name(its.path)}:{its.line}: {its.name}: {its.lines} lines" for its in large]


def test_names_say_what_a_module_does() -> None:
    vague = [name(path) for path in PYTHON if VAGUE & {path.stem, path.parent.name}]
    assert not vague


def test_a_module_begins_with_one_line_that_says_what_it_is() -> None:
    silent = []
    for module in (its for its in in_package() if its.kind is ast.Module):
        first, *rest = module.docstring.splitlines() or [""]
        if not first.endswith((".", "?")) or (rest and rest[0]):
            silent.append(f"{name(module.path)}: {first!r}")
    assert not silent


def test_docstrings_begin_with_a_verb_or_name_a_thing() -> None:
    riddles = [
        f"{name(its.path)}: {its.docstring.splitlines()[0]}"
        for its in in_package() if RIDDLE.match(its.docstring)
    ]  # fmt: skip
    assert not riddles, "\n".join(riddles)


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict[str, list[str]](list)
    for its in in_package():
        if its.kind is ast.ClassDef:
            places[its.name].append(f"{name(its.path)}:{its.line}")
    assert len(places) > 100
    shared = {kind: found for kind, found in places.items() if len(found) > 1}
    assert not shared


@pytest.mark.exhaustive
def test_nothing_leaks_into_the_files() -> None:
    leaks = [
        f"{name(path)}:{number}: {found[0]}"
        for path in published()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (found := LEAKS.search(line))
    ]
    assert not leaks, "\n".join(leaks)


def published() -> Iterator[Path]:
    """Text files that are in the repository, or would be if everything were added."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listing.returncode:
        pytest.skip("not a git checkout, so nothing says which files belong to it")
    for entry in listing.stdout.split("\0"):
        path = ROOT / entry
        if entry and path.is_file() and b"\0" not in path.read_bytes():
            yield path


def test_c_is_printed_by_printers_alone() -> None:
    assert not house.printing_modules()


def test_the_design_lists_the_rooms() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = text.partition("## Rooms")[2].partition("\n## ")[0]
    rooms = {path.parent.name for path in PACKAGE if path.parent.parent == ROOT / "polysci"}
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(rooms)
