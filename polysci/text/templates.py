"""Text files with ``@NAME@`` placeholders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_PLACEHOLDER = re.compile(r"@([A-Z_]+)@")


def fill(path: Path, values: Mapping[str, str]) -> str:
    """The text of a file with every placeholder ``@NAME@`` replaced by ``values["NAME"]``."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], _text(path))


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
