"""Parse the region with pycparser; translate its errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NoReturn

from pycparser import c_ast, c_lexer, c_parser

from polysci.polyhedral.extract.source import SourcePlace, SourceText, wordset

_TYPES = sorted(
    wordset(
        "int8_t int16_t int32_t int64_t intptr_t ptrdiff_t ssize_t"
        " size_t uint8_t uint16_t uint32_t uint64_t uintptr_t"
    )
)
_PREFIX = f"typedef int {', '.join(_TYPES)}; void region(void) {{"
_WHERE = re.compile(r"^(?:.*?:(\d+)(?::(\d+))?)?: (.*)$", re.S)
_CALLS = re.compile(r"\b(?:asm|__asm__|__attribute__|_Pragma|__extension__)\b")


class _Lexer(c_lexer.CLexer):  # type: ignore[misc]
    """Remembers the place of the last token: some errors of the parser have none."""

    last: SourcePlace = SourcePlace(1)

    def token(self) -> object:
        token = super().token()
        if token is not None:
            self.last = SourcePlace(token.lineno, getattr(token, "column", 1))
        return token


def parse(source: SourceText) -> Sequence[c_ast.Node]:
    """The statements of the region; coordinates are those of the file. Raises SpecError."""
    foreign = _CALLS.search(source.code, *source.region)
    if foreign:
        source.fail(source.place(foreign.start()), f"{foreign.group()} inside the region")
    parser = c_parser.CParser(lexer=_Lexer)
    try:
        tree = parser.parse(_wrap(source), source.filename)
    except c_parser.ParseError as error:
        _refuse(source, str(error).removeprefix(source.filename), parser.clex.last)
    if len(tree.ext) != len(_TYPES) + 1:
        source.fail(place_of(tree.ext[-1]), "a '}' ends the region too early")
    return tree.ext[-1].body.block_items or ()


def place_of(node: c_ast.Node) -> SourcePlace:
    """Return where a node starts."""
    while node.coord is None:
        node = next(child for _, child in node.children())
    return SourcePlace(node.coord.line, node.coord.column or 1)


def _wrap(source: SourceText) -> str:
    """A function around the region; it opens on the line of the pragma, which is blank."""
    lines = source.inside.split("\n")
    opening = source.code.count("\n", 0, source.region[0])
    lines[opening] = _PREFIX
    return "\n".join(lines) + "}"


def _refuse(source: SourceText, message: str, last: SourcePlace) -> NoReturn:
    match = _WHERE.match(message)
    line, column, what = match.groups() if match else (None, None, message)
    place = SourcePlace(int(line), int(column or 1)) if line else last
    end = source.place(source.region[1])
    if what.startswith("At end of input") or place.line >= end.line:
        place, what = end, "the region ends inside a statement or a brace"
    if what.startswith("before: "):
        what = f"unexpected {what.removeprefix('before: ')[:24]!r}"
    source.fail(place, f"not C as we read it: {what[:1].lower()}{what[1:]}")
