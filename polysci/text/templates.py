"""Text files with ``@HOLES@`` to be filled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_HOLE = re.compile(r"@([A-Z_]+)@")


def fill(path: Path, values: Mapping[str, str]) -> str:
    """The text of a file with every ``@HOLE@`` filled."""
    return _HOLE.sub(lambda found: values[found[1]], _text(path))


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
