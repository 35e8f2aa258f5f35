"""benchdnn's words: ``key123`` runs, a name and a multiplicity, and errors that point into them.

The grammar follows oneDNN's tests/benchdnn: words in any order, each at most once, ``_`` between
two words ignored; ``n`` starts the name, which ends the text and, as in benchdnn's own files, may
carry a multiplicity (``n"res2a*3"``). A shell eats the quotes, so ``nres2a*3`` is read too, and so
is a multiplicity after the quotes or without a name. Inside quotes a backslash goes before ``"``
and may go before itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from polysci.border.arguments import check_type
from polysci.errors import PolysciError, SpecError
from polysci.numerics.scalar_functions import ACTIVATIONS
from polysci.text.names import suggest

LIMIT = 2**63  # values and products stay below
SHOWN = 100  # columns of the text in a message
_ACTIVATION = re.compile(r"\s+act=(\w*)(?:\s+|\Z)")
_NUMBER = re.compile(r"[0-9]+")
_LETTERS = re.compile(r"[A-Za-z]+")
_NEGATIVE = re.compile(r"-[0-9]{1,20}")
_REPEATED = re.compile(r"\*([0-9]+)\Z")
_QUOTED = re.compile(r'"((?:\\.|[^"\\])*)"', re.S)
_ESCAPED = re.compile(r'\\(["\\])')
_SPECIAL = re.compile(r'["\\]')


class Remainder(str):
    """A text with spaces for the words that were read; errors show the ``whole`` one."""

    whole: str


@dataclass(frozen=True, slots=True)
class Line:
    """A text that errors point into; ``where`` is the ``file:line`` it came from, if any."""

    text: str
    where: str = ""

    def __post_init__(self) -> None:
        """Raises TypeError for what is no text."""
        check_type("text", self.text, str)

    def after(self, word: str, rule: str = "") -> int:
        """The column behind a word that begins the text. Raises SpecError where another does."""
        start = _start(self)
        if not self.text.startswith(word, start):
            raise self.error(start, f"expected {word!r}", rule)
        return start + len(word)

    def behind(self, word: str) -> str:
        """The text with the word that begins it, and a colon, as spaces. Raises as ``after``."""
        at = self.after(word)
        at += self.text[at : at + 1] == ":"
        rest = Remainder(" " * at + self.text[at:])
        rest.whole = self._whole
        return rest

    @property
    def _whole(self) -> str:
        return self.text.whole if isinstance(self.text, Remainder) else self.text

    def error(
        self, at: int, what: str, rule: str = "", kind: type[PolysciError] = SpecError
    ) -> PolysciError:
        """An exception of ``kind``: what is wrong, the text, a caret under ``at``, the rule."""
        first = max(0, at - SHOWN + 10)
        shown = "".join(c if c.isprintable() else "?" for c in self._whole[first : first + SHOWN])
        place = f"{self.where}:{at + 1}: " if self.where else ""
        lines = [f"{place}{what}", f"    {shown}", f"    {' ' * (at - first)}^", rule]
        return kind("\n".join(filter(None, lines)))


@dataclass(frozen=True, slots=True)
class Word:
    """The value of a word and the column where it starts."""

    value: int
    at: int


@dataclass(frozen=True, slots=True)
class Words:
    """The contents of a text: values by key, activation, name and multiplicity."""

    line: Line
    values: Mapping[str, Word]
    activation: str = ""
    name: str = ""
    multiplicity: int = 1

    def get(self, key: str) -> int | None:
        return self.values[key].value if key in self.values else None

    def at(self, *keys: str) -> int:
        """Return the column of the first of ``keys`` that is there, else of the first word."""
        return next((self.values[key].at for key in keys if key in self.values), _start(self.line))


def read(line: Line, keys: Sequence[str]) -> Words:
    """Split a text into words. Raises SpecError for whatever is no word of ``keys``."""
    text, at = line.text.rstrip(), _start(line)
    if at == len(text):
        raise line.error(at, "no words", f"Words are {_list(keys)}.")
    pattern = re.compile("|".join(sorted(keys, key=len, reverse=True)))
    values: dict[str, Word] = {}
    while at < len(text) and text[at] not in "n*" and not _ACTIVATION.match(text, at):
        key = pattern.match(text, at)
        if key is None:
            raise _unknown(line, at, keys)
        if key.group() in values:
            before = f"{key.group()}{values[key.group()].value}"
            raise line.error(at, f"{key.group()} is repeated", f"It stands before as {before}.")
        end = _number_end(line, key)
        values[key.group()] = Word(_number(line, key.end(), text[key.end() : end]), at)
        at = end + (text[end : end + 1] == "_")
    activation, at = read_activation(line, at)
    if text[at : at + 1] not in ("", "n", "*"):
        raise line.error(at, f"{text[at : at + 8]!r} behind the activation", "A name may follow.")
    name, multiplicity = read_ending(line, at)
    return Words(line, MappingProxyType(values), activation, name, multiplicity)


def read_activation(line: Line, at: int) -> tuple[str, int]:
    """Return the activation of ``act=gelu`` in column ``at``, if any, and the column behind it."""
    match = _ACTIVATION.match(line.text, at)
    if match is None:
        return "", at
    if match[1] not in ACTIVATIONS:
        what = f"activation {match[1]!r} is none of {', '.join(ACTIVATIONS)}"
        raise line.error(match.start(1), what + suggest(match[1], ACTIVATIONS))
    return match[1], match.end()


def write_activation(name: str) -> str:
    """Return the words of an activation; none for none."""
    return f" act={name}" if name else ""


def write_label(name: str, multiplicity: int) -> str:
    """Return the end of the words: ``n"name*multiplicity"``, with what is default left out."""
    repeated = multiplicity != 1 or _REPEATED.search(name)
    times = f"*{multiplicity}" if repeated else ""
    escaped = _SPECIAL.sub(r"\\\g<0>", name)
    return f'n"{escaped}{times}"' if name or times else ""


def _unknown(line: Line, at: int, keys: Sequence[str]) -> PolysciError:
    """Return the error of a word that is none of ``keys``, with those most like its letters."""
    letters = _LETTERS.match(line.text, at)
    hint = suggest(letters.group(), keys) if letters else ""
    rule = f"Words are {_list(keys)}{hint or '.'}"
    return line.error(at, f"unknown word {line.text.rstrip()[at : at + 8]!r}", rule)


def _list(keys: Sequence[str]) -> str:
    return f'{" ".join(keys)}, each with its number, and n"name" at the end'


def _start(line: Line) -> int:
    text = line.text.rstrip()
    return len(text) - len(text.lstrip())


def _number_end(line: Line, key: re.Match[str]) -> int:
    """Return the end of the number after ``key``."""
    number = _NUMBER.match(line.text, key.end())
    end = number.end() if number else key.end()
    following = line.text[end : end + 1]
    if following.isnumeric() and not following.isascii():
        raise line.error(end, f"{key.group()}: {following!r} is not one of the digits 0-9")
    if number:
        return end
    negative = _NEGATIVE.match(line.text, key.end())
    if negative:
        raise line.error(key.start(), f"{key.group()}{negative.group()} must not be negative")
    raise line.error(key.start(), f"{key.group()} has no number", "A word is a key and its number.")


def _number(line: Line, at: int, digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    if len(digits) > 19 or int(digits) >= LIMIT:
        raise line.error(at, f"{digits[:20]}{'...' * (len(digits) > 20)} is beyond 2^63")
    return int(digits)


def read_extent(line: Line, at: int, digits: str, rule: str) -> int:
    """Return an extent that stands as digits in column ``at``. Raises SpecError."""
    digits = digits.lstrip("0")
    if not 0 < len(digits) < 20 or int(digits) >= LIMIT:
        raise line.error(at, f"extent {digits[:20] or 0}: expected 1 to 2^63 - 1", rule)
    return int(digits)


def read_ending(line: Line, at: int) -> tuple[str, int]:
    """Return the name and the multiplicity that end the text, from column ``at`` on."""
    rest = line.text.rstrip()[at:]
    if not rest:
        return "", 1
    if rest[0] == "*":
        return "", _times(line, at, rest[1:])
    name, suffix = (
        _parse_quoted(line, at, rest[1:]) if rest[1:2] == '"' else _plain(line, at, rest[1:])
    )
    bad = next((c for c in name if not c.isprintable()), None)
    if bad is not None:
        raise line.error(at + 1, f"the name holds {bad!r}", "A name is printable text.")
    inside = _REPEATED.search(name)
    if inside and suffix is not None:
        raise line.error(at, "the multiplicity is repeated", 'Write n"name*3" or n"name"*3.')
    if inside:
        return name[: inside.start()], _times(line, at + 1, inside.group(1))
    return name, 1 if suffix is None else _times(line, at + 1, suffix)


def _parse_quoted(line: Line, at: int, rest: str) -> tuple[str, str | None]:
    """Name and multiplicity text of ``"name"`` or ``"name"*3``."""
    rule = 'A name is n"text" and ends the words.'
    match = _QUOTED.match(rest)
    if match is None:
        raise line.error(at + 1, "the name's quote is not closed", rule)
    after = rest[match.end() :]
    if after and after[0] != "*":
        raise line.error(at + 1 + match.end(), "text after the name's quote", rule)
    return _ESCAPED.sub(r"\1", match.group(1)), after[1:] if after else None


def _plain(line: Line, at: int, rest: str) -> tuple[str, str | None]:
    if not rest:
        raise line.error(at, "n has no name", 'A name is n"text" and ends the words.')
    bad = next((i for i, c in enumerate(rest) if c == '"' or c.isspace()), None)
    if bad is not None:
        raise line.error(at + 1 + bad, f"{rest[bad]!r} in a name without quotes", 'Write n"name".')
    return rest, None


def _times(line: Line, at: int, digits: str) -> int:
    if not _NUMBER.fullmatch(digits):
        what = f"{digits[:8]!r} is no multiplicity"
        raise line.error(at, what, "It is * and a number, at the end.")
    times = _number(line, at, digits)
    if times < 1:
        raise line.error(at, "*0: the multiplicity must be positive")
    return times
