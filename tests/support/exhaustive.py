"""Marks what ``make test`` leaves out, and takes a share of the rest."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests.support.kept_cases import KEPT_EVERY
from tests.support.left_out import LEFT_OUT

OPTIMISED = 8  # of the long tests one compiles at -O3: all of them would take twice as long
TESTS = Path(__file__).parents[1]


def mark(items: Sequence[pytest.Item]) -> None:
    """Mark what ``make test`` leaves out: by the tables, and whatever needs a whole calibration."""
    seen: Counter[tuple[str, str]] = Counter()
    for item in items:
        if "machine" in getattr(item, "fixturenames", ()):
            item.add_marker("exhaustive")
        file = item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else ""
        name = getattr(item, "originalname", item.name)
        rows = KEPT_EVERY.get(file, {})
        if name.removeprefix("test_") in LEFT_OUT.get(file, "").split():
            item.add_marker("exhaustive")
        if name not in rows and "*" not in rows:
            continue
        distance = rows.get(name, rows.get("*"))
        index = seen[file, name]
        seen[file, name] += 1
        if distance is None or (index % distance if distance else index):
            item.add_marker("exhaustive")


def share(items: list[pytest.Item], text: str) -> list[pytest.Item]:
    """Of the items those of share K of N, by ``text``, "K/N": the same ones in every run.

    Raises UsageError for anything else.
    """
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and int(number) < int(count)):
        raise pytest.UsageError(f"--share {text}: expected K/N with 0 <= K < N, as 0/3")
    return [item for item in items if crc32(item.nodeid.encode()) % int(count) == int(number)]


def is_optimised(item: pytest.Item, seed: int) -> bool:
    """Whether a test compiles with users' flags: another one of OPTIMISED tests a seed does."""
    return crc32(f"{seed} {item.nodeid}".encode()) % OPTIMISED == 0


def selected(session: pytest.Session, parameter: str, kind: type) -> list[Any]:
    """The values of a parameter in the tests that will run, for fixtures that prepare them all."""
    specs = [getattr(item, "callspec", None) for item in session.items]
    values = [spec.params.get(parameter) for spec in specs if spec]
    return list(dict.fromkeys(value for value in values if isinstance(value, kind)))
