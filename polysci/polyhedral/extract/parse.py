"""Parse the region with pycparser; find declarations without understanding the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from pycparser import c_ast, c_lexer, c_parser

from polysci.polyhedral.extract.source import KEYWORDS, SourcePlace, SourceText, wordset

_TOKEN = re.compile(r"""\w+|"(?:\\.|[^"\\\n])*"|[^\s]""")
_SCALARS = wordset("char short int long signed unsigned float double bool _Bool")
_QUALIFIERS = wordset("const static extern register volatile restrict __restrict inline")
_NOT_A_TYPE = KEYWORDS - _SCALARS - _QUALIFIERS
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class ArrayDeclaration:
    """``type name[size]...``: sizes as text, offset in the code, whether it is a pointer."""

    name: str
    dtype_c: str
    sizes: tuple[str, ...]
    offset: int
    pointer: bool = False

    def __str__(self) -> str:
        star = "*" if self.pointer else ""
        return f"{self.dtype_c} {star}{self.name}{''.join(f'[{size}]' for size in self.sizes)}"


def declarations(code: str) -> dict[str, list[ArrayDeclaration]]:
    """Return every declaration in ``code`` by name, in the order of the text.

    A declaration is a run of type specifiers before a name, after ``;``, a brace, ``(`` or ``,``.
    """
    by_name: dict[str, list[ArrayDeclaration]] = {}
    tokens = [(match.group(), match.start()) for match in _TOKEN.finditer(code)]
    tokens.append((";", len(code)))
    at = 0
    while at < len(tokens):
        head = _head(tokens, at)
        if head == at or (at and tokens[at - 1][0] not in ";{}(,"):
            at = max(head, at + 1)
            continue
        specifiers = [word for word, _ in tokens[at:head]]
        at = _declarators(tokens, at, head, specifiers, by_name)
    return by_name


def _is_word(token: str) -> bool:
    return token[0].isalpha() or token[0] == "_"


def _head(tokens: list[tuple[str, int]], at: int) -> int:
    """Return the end of the run of identifiers that starts at ``at``."""
    while at < len(tokens) and _is_word(tokens[at][0]):
        at += 1
    return at


def _declarators(
    tokens: list[tuple[str, int]],
    start: int,
    at: int,
    specifiers: list[str],
    by_name: dict[str, list[ArrayDeclaration]],
) -> int:
    """Read ``words`` as type and declarators; returns the index of the next token to read."""
    pointer = tokens[at][0] == "*"
    kind = [w for w in (specifiers if pointer else specifiers[:-1]) if w not in _QUALIFIERS]
    if not kind or _NOT_A_TYPE & set(specifiers):
        return at
    plain = any(w in _SCALARS or w.endswith("_t") for w in kind)
    if pointer and not plain:
        return at
    at = at if pointer else at - 1
    while True:
        stars = at
        while tokens[at][0] == "*" or tokens[at][0] in _QUALIFIERS:
            at += 1
        name, offset = tokens[at]
        if not _is_word(name) or name in KEYWORDS:
            return at
        sizes, at = _sizes(tokens, at + 1)
        if tokens[at][0] not in ";,=)" or not (sizes or plain):
            return max(at, start + 1)
        declared = ArrayDeclaration(name, " ".join(kind), sizes, offset, tokens[stars][0] == "*")
        by_name.setdefault(name, []).append(declared)
        at = _after_initialiser(tokens, at)
        if tokens[at][0] != "," or _head(tokens, at + 1) - at > 2:
            return at
        at += 1


def _sizes(tokens: list[tuple[str, int]], at: int) -> tuple[tuple[str, ...], int]:
    sizes = []
    while tokens[at][0] == "[":
        end = _closing(tokens, at)
        sizes.append(" ".join(token for token, _ in tokens[at + 1 : end]))
        at = min(end + 1, len(tokens) - 1)
    return tuple(sizes), at


def _closing(tokens: list[tuple[str, int]], at: int) -> int:
    """Index of the bracket that closes the one at ``at``, or of the last token."""
    expected: list[str] = []
    for index in range(at, len(tokens)):
        token = tokens[index][0]
        if token in _CLOSING:
            expected.append(_CLOSING[token])
        elif expected and token == expected[-1]:
            expected.pop()
            if not expected:
                return index
    return len(tokens) - 1


def _after_initialiser(tokens: list[tuple[str, int]], at: int) -> int:
    if tokens[at][0] != "=":
        return at
    while tokens[at][0] not in ";,)" and at < len(tokens) - 1:
        at = (_closing(tokens, at) if tokens[at][0] in _CLOSING else at) + 1
    return min(at, len(tokens) - 1)


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
    """Return the statements of the region; coordinates are those of the file. Raises SpecError."""
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
    """Return a function around the region; it opens on the line of the pragma, which is blank."""
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
