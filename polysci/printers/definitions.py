"""The definitions of C headers, and which of them a text needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\(.*?\)\)+", re.DOTALL)
_BRACES = re.compile(r"\{[^{}]*\}")
_CONDITION = re.compile(r"#\s*(?:if|ifdef|ifndef|elif|else|endif)\b.*")
_IF = re.compile(r"^\s*#\s*if", re.MULTILINE)
_ENDIF = re.compile(r"^\s*#\s*endif", re.MULTILINE)
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
        """Whether it is a function that other files do not see."""
        return "static" in self.prototype.split()


@cache
def definitions(text: str) -> tuple[Definition, ...]:
    """The pieces of a header in their order; the branches of a conditional are one piece."""
    return tuple(_definition(piece) for piece in _pieces(text))


def reach(header: Sequence[Definition], text: str) -> list[Definition]:
    """The definitions that a text uses, those that these use, and so on, in their order."""
    places: dict[str, list[int]] = {}
    for place, definition in enumerate(header):
        for name in definition.names:
            places.setdefault(name, []).append(place)
    kept = {place for place, definition in enumerate(header) if not definition.names}
    pending = [words(text), *(header[place].uses for place in sorted(kept))]
    while pending:
        used = {place for name in pending.pop() for place in places.get(name, ())} - kept
        kept |= used
        pending += [header[place].uses for place in used]
    return [definition for place, definition in enumerate(header) if place in kept]


def trim(headers: Sequence[str], text: str) -> str:
    """Return what a text needs of C headers."""
    return _join(reach(_all_in(headers), f"PS_TARGET {text}"))


def arrange(headers: Sequence[str], text: str) -> str:
    """Return what a text needs of C headers, and the text: what is not static as early as C allows.

    Ahead of it stand the types, macros and prototypes that it uses; behind it the static functions.
    """
    pieces = definitions(text)
    internal = [part for part in pieces if part.internal]
    heads = words(" ".join(part.prototype for part in internal))
    types = [part for part in pieces if part.text.startswith("#") and part.names & heads]
    code = _join(part for part in pieces if not part.internal and part not in types)
    behind = [*reach(_all_in(headers), f"PS_TARGET {text}"), *types, *internal]
    ahead = _ahead(behind, code)
    whole = {id(part) for part in ahead if not part.prototype}
    lines = [part.prototype or part.text for part in ahead]
    rest = _join(part for part in behind if id(part) not in whole)
    return "\n".join([*lines, "", code, "", rest, ""])


def _ahead(parts: Sequence[Definition], text: str) -> list[Definition]:
    """Return what must be declared before a text, in the order of the parts."""
    directives = [part for part in parts if not part.names and _code(part.text).startswith("#")]
    kept = {id(part) for part in directives}
    pending = [words(text), *(part.uses for part in directives)]
    while pending:
        used = pending.pop()
        for part in parts:
            if id(part) not in kept and part.names & used:
                kept.add(id(part))
                pending.append(words(part.prototype) if part.prototype else part.uses)
    return [part for part in parts if id(part) in kept]


def _all_in(headers: Sequence[str]) -> list[Definition]:
    return [definition for text in headers for definition in definitions(text)]


def _join(parts: Iterable[Definition]) -> str:
    return "\n".join(part.text for part in parts)


def words(text: str) -> frozenset[str]:
    """The identifiers in C text, comments left out."""
    return frozenset(_WORD.findall(_COMMENT.sub(" ", text)))


def _pieces(text: str) -> Iterator[str]:
    """The text cut at file scope, outside of conditionals, after every definition.

    A blank line or a directive ends what has no semicolon: a macro that makes definitions.
    """
    piece = ""
    for line in text.splitlines():
        if (not line.strip() or line.startswith("#")) and _closed(piece):
            yield piece[:-1]
            piece = ""
        piece += f"{line}\n"
        code = _code(piece)
        if _closed(piece) and (code.startswith("#") or code.endswith((";", "}"))):
            yield piece[:-1]
            piece = ""
    if piece.strip():
        yield piece[:-1]


def _code(piece: str) -> str:
    return _COMMENT.sub(" ", piece).strip()


def _closed(piece: str) -> bool:
    """Whether there is code, and no comment, line, conditional or brace is open."""
    code = _code(piece)
    if not code or piece.endswith("\\\n") or piece.rfind("/*") > piece.rfind("*/"):
        return False
    if len(_IF.findall(code)) != len(_ENDIF.findall(code)):
        return False
    return code.startswith("#") or code.count("{") == code.count("}")


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
    """Return the names that a type, a constant or a declaration defines."""
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
