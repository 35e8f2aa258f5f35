"""The definitions of C headers, and which of them a text needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\(.*?\)\)+", re.DOTALL)
_BRACES = re.compile(r"\{[^{}]*\}")
_CONDITION = re.compile(r"#\s*(?:if|ifdef|ifndef|elif|else|endif)\b.*")
_IF = re.compile(r"#\s*if")
_ENDIF = re.compile(r"#\s*endif")
_MACRO = re.compile(r"#\s*(?:define|undef)\s+(\w+)")
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Definition:
    """A piece of C at file scope, its comment ahead: the names that it defines and those it uses.

    One without names (an include, a pragma) is needed by every text. ``prototype`` declares a
    function; it is empty for what is no function.
    """

    text: str
    names: frozenset[str]
    uses: frozenset[str]
    prototype: str = ""

    @property
    def internal(self) -> bool:
        """Return whether it is a function that other files do not see."""
        return "static" in self.prototype.split()


@cache
def definitions(text: str) -> tuple[Definition, ...]:
    """The pieces of a header in their order; the branches of a conditional are one piece."""
    return tuple(_definition(piece) for piece in _pieces(text))


@dataclass(slots=True)
class _Headers:
    """The definitions of headers, and by name all that its use needs, as places among them."""

    all: list[Definition]
    places: dict[str, list[int]] = field(default_factory=dict)
    needed: dict[str, frozenset[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for place, definition in enumerate(self.all):
            for name in definition.names or [""]:
                self.places.setdefault(name, []).append(place)

    def need(self, name: str) -> frozenset[int]:
        """Return the places of what defines a name, of what that uses, and so on."""
        if name not in self.needed:
            reached, pending = set[int](), [*self.places.get(name, ())]
            while pending:
                place = pending.pop()
                if place not in reached:
                    reached.add(place)
                    uses = self.all[place].uses
                    pending += [other for use in uses for other in self.places.get(use, ())]
            self.needed[name] = frozenset(reached)
        return self.needed[name]


@cache
def _headers(texts: tuple[str, ...]) -> _Headers:
    return _Headers([definition for text in texts for definition in definitions(text)])


def reach(headers: Sequence[str], text: str) -> list[Definition]:
    """Return the definitions that a text uses, those that these use, and so on, in their order."""
    known = _headers(tuple(headers))
    names = [name for name in identifiers(text) if name in known.places]
    kept = frozenset[int]().union(*map(known.need, ("", *names)))
    return [known.all[place] for place in sorted(kept)]


def trim(headers: Sequence[str], text: str) -> str:
    """Return the parts of C headers that a text needs."""
    return _join(reach(headers, f"PS_TARGET {text}"))


def arrange(headers: Sequence[str], text: str) -> str:
    """Return the parts of C headers that a text needs, and the text.

    What is not static stands as early as C allows.

    Ahead of it stand the types, macros and prototypes that it uses; behind it the static functions.
    """
    pieces = definitions(text)
    internal = [part for part in pieces if part.internal]
    heads = identifiers(" ".join(part.prototype for part in internal))
    types = [part for part in pieces if part.text.startswith("#") and part.names & heads]
    code = _join(part for part in pieces if not part.internal and part not in types)
    behind = [*reach(headers, f"PS_TARGET {text}"), *types, *internal]
    ahead = _ahead(behind, code)
    whole = {id(part) for part in ahead if not part.prototype}
    lines = [part.prototype or part.text for part in ahead]
    rest = _join(part for part in behind if id(part) not in whole)
    return "\n".join([*lines, "", code, "", rest, ""])


def _ahead(parts: Sequence[Definition], text: str) -> list[Definition]:
    """Return the parts that must be declared before a text, in their order."""
    places: dict[str, list[int]] = {}
    for place, part in enumerate(parts):
        for name in part.names:
            places.setdefault(name, []).append(place)
    kept = {
        place for place, part in enumerate(parts)
        if not part.names and _code(part.text).startswith("#")
    }  # fmt: skip
    pending = [identifiers(text), *(parts[place].uses for place in kept)]
    while pending:
        used = {place for name in pending.pop() for place in places.get(name, ())} - kept
        kept |= used
        pending += [identifiers(it.prototype) or it.uses for it in map(parts.__getitem__, used)]
    return [parts[place] for place in sorted(kept)]


def _join(parts: Iterable[Definition]) -> str:
    return "\n".join(part.text for part in parts)


def identifiers(text: str) -> frozenset[str]:
    """The identifiers in C text, comments left out."""
    return frozenset(_WORD.findall(_COMMENT.sub(" ", text)))


def _pieces(text: str) -> Iterator[str]:
    """Yield the text cut at file scope, outside of conditionals, after every definition.

    A blank line or a directive ends what has no semicolon: a macro that makes definitions.
    """
    piece = _Piece()
    for line in text.splitlines():
        if (not line.strip() or line.startswith("#")) and piece.closed:
            yield "\n".join(piece.lines)
            piece = _Piece()
        piece.add(line)
        if piece.closed and (piece.first == "#" or piece.last in (";", "}")):
            yield "\n".join(piece.lines)
            piece = _Piece()
    if "".join(piece.lines).strip():
        yield "\n".join(piece.lines)


@dataclass(slots=True)
class _Piece:
    """Lines, the first and last letter of their code, and what is open at their end."""

    lines: list[str] = field(default_factory=list)
    first: str = ""
    last: str = ""
    braces: int = 0
    conditionals: int = 0
    comment: bool = False

    def add(self, line: str) -> None:
        self.lines.append(line)
        code = line
        if self.comment:
            _, end, code = code.partition("*/")
            self.comment = not end
        if "/" in code:
            code = _COMMENT.sub(" ", code)
            code, opened, _ = code.partition("/*")
            self.comment = bool(opened)
        if not (code := code.strip()):
            return
        self.first, self.last = self.first or code[0], code[-1]
        self.braces += code.count("{") - code.count("}")
        if code[0] == "#":
            self.conditionals += bool(_IF.match(code)) - bool(_ENDIF.match(code))

    @property
    def closed(self) -> bool:
        """Return whether there is code, and no comment, line, conditional or brace is open."""
        if not self.first or self.comment or self.conditionals or self.lines[-1].endswith("\\"):
            return False
        return self.first == "#" or not self.braces


def _code(piece: str) -> str:
    return _COMMENT.sub(" ", piece).strip()


def _definition(piece: str) -> Definition:
    code = _code(piece)
    uses = frozenset(_WORD.findall(code))
    if _CONDITION.match(code):
        inner = "\n".join(line for line in code.splitlines() if not _CONDITION.match(line))
        parts = [_definition(part) for part in _pieces(inner)]
        names = frozenset(name for part in parts for name in part.names)
        return Definition(piece, names, uses)
    if code.startswith("#"):
        return Definition(piece, frozenset(_MACRO.findall(code)[:1]), uses)
    head = _ATTRIBUTE.sub("", code)
    if re.match(r"typedef|enum|struct|union", head) or "{" not in head:
        return Definition(piece, _types(head), uses)
    function = re.match(r"[^(){}=]*?(\w+)\s*\(", head)
    if function is None:
        return Definition(piece, _types(head), uses)
    prototype = f"{code[: code.index('{')].strip()};"
    return Definition(piece, frozenset({function[1]}), uses, prototype)


def _types(head: str) -> frozenset[str]:
    """Return the tags, enumerators and last names that a type or a declaration defines."""
    names = set(re.findall(r"\b(?:struct|union|enum)\s+(\w+)\s*\{", head))
    for body in re.findall(r"enum\b[^{};]*\{([^{}]*)\}", head):
        names |= {part.split("=")[0].strip() for part in body.split(",")} - {""}
    while _BRACES.search(head):
        head = _BRACES.sub(" ", head)
    pointer = re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", head)
    last = re.search(r"(\w+)\s*(?:\[.*?\]\s*)*(?:=.*|\(.*\)\s*)?;", head, re.DOTALL)
    named = pointer or last
    if named and named[1] not in ("enum", "struct", "union"):
        names.add(named[1])
    return frozenset(names)
