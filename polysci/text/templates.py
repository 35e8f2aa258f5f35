"""Text files with ``@NAME@`` placeholders, and parts that stand there under a condition.

``@?NAME@ ... @/NAME@`` stays where the value of NAME is no empty text, ``@!NAME@ ... @/NAME@``
where it is. A mark that fills a line goes with the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_PLACEHOLDER = re.compile(r"@([A-Z_]+)@")
_PARTS = (
    re.compile(r"^@([?!])([A-Z_]+)@\n(.*?)^@/\2@\n", re.MULTILINE | re.DOTALL),
    re.compile(r"@([?!])([A-Z_]+)@(.*?)@/\2@", re.DOTALL),
)


def fill(path: Path, values: Mapping[str, str]) -> str:
    """Return the text of a file with every placeholder ``@NAME@`` replaced by ``values["NAME"]``.

    A part whose condition has no value is left out.
    """

    def part(match: re.Match[str]) -> str:
        mark, name, inside = match.groups()
        return inside if bool(values.get(name)) == (mark == "?") else ""

    text = _text(path)
    for pattern in _PARTS if "@?" in text or "@!" in text else ():
        text = pattern.sub(part, text)
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
