"""Which shared objects of the cache have run on this machine, and were found to work."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Final

from polysci.border.files import read_stored, replace_file

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
