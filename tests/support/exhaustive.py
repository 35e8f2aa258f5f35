"""Marks of the cases that ``make test`` leaves to ``make test-all``, and shares of those."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

OPTIMISED = 8  # of the long tests one compiles at -O3: all of them would take twice as long


def mark(items: Sequence[pytest.Item]) -> None:
    """Mark the cases that only ``make test-all`` runs: of sampled tests, and of calibrations."""
    cases: Counter[tuple[Path, str]] = Counter()
    for item in items:
        if "machine" in getattr(item, "fixturenames", ()):  # measures all rates of this machine
            item.add_marker("exhaustive")
        if (marker := item.get_closest_marker("sampled")) is None:
            continue
        key = item.path, getattr(item, "originalname", item.name)
        every = marker.kwargs.get("every")
        if cases[key] % every if every else cases[key]:
            item.add_marker("exhaustive")
        cases[key] += 1


def share(items: list[pytest.Item], text: str) -> list[pytest.Item]:
    """Return the items of share K of N, by ``text``, "K/N": the same ones in every run.

    Raises UsageError for anything else.
    """
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and int(number) < int(count)):
        raise pytest.UsageError(f"--share {text}: expected K/N with 0 <= K < N, as 0/3")
    return [item for item in items if crc32(item.nodeid.encode()) % int(count) == int(number)]


def level_of(item: pytest.Item, seed: int) -> str:
    """Return the optimisation of a test's builds: users' where it is timed, else a faster one.

    Long tests compute more than they compile; one of OPTIMISED gets users' level, by the seed.
    """
    if item.get_closest_marker("perf"):
        return "-O3"
    if item.get_closest_marker("exhaustive"):
        return "-O1" if crc32(f"{seed} {item.nodeid}".encode()) % OPTIMISED else "-O3"
    return "-O1" if item.get_closest_marker("measured") else "-O0"


def selected(session: pytest.Session, parameter: str, kind: type) -> list[Any]:
    """Return the values of a parameter in the tests that will run, for fixtures."""
    specs = [getattr(item, "callspec", None) for item in session.items]
    values = [spec.params.get(parameter) for spec in specs if spec]
    return list(dict.fromkeys(value for value in values if isinstance(value, kind)))
