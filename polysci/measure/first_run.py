"""The first run of a layer's code on this machine: exact integers, in a worker process.

One process a backend is kept for all checks of this one; threads take turns.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from polysci.border.files import read_stored, replace_file
from polysci.errors import CheckError
from polysci.lower.algorithm import SYMBOL
from polysci.measure.bench import Bench, CandidateError
from polysci.measure.check import Verdict, time_limit
from polysci.ops.problem import Problem
from polysci.runtime.backend import Backend
from polysci.runtime.policy import read_policy
from polysci.runtime.source import Source

_MARK: Final = "has_run"  # a file of the entry, with the digest of the shared object


def has_run(path: Path) -> bool:
    """Return whether this very shared object is noted; damaged notes count as none."""
    try:
        return read_stored(path.with_name(_MARK)) == _digest(path)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def note_run(path: Path) -> None:
    """Remember that what ``cache.build`` returned works; a full disk forgets it."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        digest = _digest(path)
        with replace_file(path.with_name(_MARK)) as file:
            file.write(digest)


def _digest(path: Path) -> bytes:
    """Return the digest in the entry, which every build compares with the shared object."""
    entry = json.loads(read_stored(path.with_name("entry.json")))
    return str(entry["sha256"]).encode()


class _Kept:
    """The worker processes of this process, by their backends; a fork has none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.benches: dict[str, Bench] = {}

    def check(self, path: Path, problem: Problem, source: Source, backend: Backend) -> None:
        """Raises CandidateError where the code is wrong, CheckError where no worker starts."""
        with self.lock:
            bench = self.benches.pop(backend.name, None) or Bench(problem, backend=backend)
            try:
                bench.timeout, bench.backend = time_limit(problem), backend
                bench.take(problem)
                bench.check(path, SYMBOL, source.schedule)
            except BaseException:  # a process that was interrupted may answer later
                with suppress(Exception):
                    bench.close()
                raise
            self.benches[backend.name] = bench


_kept = _Kept()


def _forget() -> None:
    """A child of fork: its parent's process and lock are not its own."""
    global _kept
    _kept = _Kept()


os.register_at_fork(after_in_child=_forget)


def check_first_run(
    path: Path, problem: Problem, source: Source, threads: int, backend: Backend
) -> None:
    """Check a built layer bit for bit, unless it was on this machine or the policy says not to.

    Raises CheckError that names problem, schedule and the command that repeats the check.
    """
    if not backend.measured or has_run(path) or not read_policy().first_runs:
        return
    verdict = Verdict(problem, source.schedule, threads, "exact", 0)
    try:
        _kept.check(path, problem, source, backend)
    except CandidateError as error:
        raise CheckError(
            f"{problem}: {source.schedule}: its first run failed: {error}\n"
            f"to repeat: {verdict.command}"
        ) from error
    except CheckError as error:
        raise CheckError(
            f"{problem}: no process to check its first run in: {error}; to go without: verify=False"
        ) from error
    note_run(path)
