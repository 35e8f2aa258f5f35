"""Text files with ``@NAME@`` placeholders, and parts that are repeated or under a condition.

``@?NAME@ ... @/NAME@`` stays where the value of NAME is no empty text, ``@!NAME@ ... @/NAME@``
where it is; ``@*NAME@ ... @/NAME@`` stands there once for each row of NAME. A mark that fills a
line goes with the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

Rows = Mapping[str, Sequence[Mapping[str, str]]]
NO_ROWS: Final[Rows] = MappingProxyType({})
_PLACEHOLDER = re.compile(r"@([A-Z_]+)@")
_REPEATED = re.compile(r"^@\*([A-Z_]+)@\n(.*?)^@/\1@\n", re.MULTILINE | re.DOTALL)
_PARTS = (
    re.compile(r"^@([?!])([A-Z_]+)@\n(.*?)^@/\2@\n", re.MULTILINE | re.DOTALL),
    re.compile(r"@([?!])([A-Z_]+)@(.*?)@/\2@", re.DOTALL),
)


def fill(path: Path, values: Mapping[str, str], rows: Rows = NO_ROWS) -> str:
    """Return the text of a file with every placeholder ``@NAME@`` replaced by ``values["NAME"]``.

    A part whose condition has no value is left out. ``rows`` are the values of each copy of a
    repeated part, beside those of the whole.
    """

    def copies(match: re.Match[str]) -> str:
        name, inside = match.groups()
        return "".join(_insert(inside, row) for row in rows[name])

    def part(match: re.Match[str]) -> str:
        mark, name, inside = match.groups()
        return inside if bool(values.get(name)) == (mark == "?") else ""

    text = _REPEATED.sub(copies, _text(path)) if rows else _text(path)
    for pattern in _PARTS if "@?" in text or "@!" in text else ():
        text = pattern.sub(part, text)
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def _insert(text: str, row: Mapping[str, str]) -> str:
    """Return a text with the values of a row; other placeholders stay."""
    return _PLACEHOLDER.sub(lambda match: row.get(match[1], match[0]), text)


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
