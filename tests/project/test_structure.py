"""The shape of the project: sizes of files and functions, names, docstrings, what must not leak."""

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import house

ROOT = Path(__file__).parents[2]
FILE_LINES, FUNCTION_LINES = 800, 60
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


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_something_to_check() -> None:
    assert len(PACKAGE) > 40 and len(PYTHON) > len(PACKAGE) + 20


def test_files_and_functions_stay_small() -> None:
    assert not [large for path in PYTHON for large in too_large(path)]


def too_large(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    if (lines := len(text.splitlines())) > FILE_LINES:
        yield f"{name(path)}: {lines} lines, {FILE_LINES} are allowed"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                place = f"{name(path)}:{node.lineno}: {node.name}"
                yield f"{place}: {lines} lines, {FUNCTION_LINES} are allowed"


def test_names_say_what_a_module_does() -> None:
    vague = [name(path) for path in PYTHON if VAGUE & {path.stem, path.parent.name}]
    assert not vague


def test_a_module_begins_with_one_line_that_says_what_it_is() -> None:
    silent = []
    for path in PACKAGE:
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first, *rest = docstring.splitlines() or [""]
        if not first.endswith((".", "?")) or (rest and rest[0]):
            silent.append(f"{name(path)}: {first!r}")
    assert not silent


def test_docstrings_begin_with_a_verb_or_name_a_thing() -> None:
    riddles = []
    for path in PACKAGE:
        if "templates" in path.relative_to(ROOT / "polysci").parts:  # of exported packages
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                docstring = ast.get_docstring(node) or ""
                if RIDDLE.match(docstring):
                    riddles.append(f"{name(path)}: {docstring.splitlines()[0]}")
    assert not riddles, "\n".join(riddles)


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict[str, list[str]](list)
    for path in PACKAGE:
        if "templates" in path.relative_to(ROOT / "polysci").parts:  # of exported packages
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{name(path)}:{node.lineno}")
    assert len(places) > 100
    shared = {kind: found for kind, found in places.items() if len(found) > 1}
    assert not shared


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
