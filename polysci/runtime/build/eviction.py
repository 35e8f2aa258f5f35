"""Eviction from the cache: least recently used entries go when it outgrows its limit.

An entry is a folder or a file, and its age is its mtime, renewed at each use. It is renamed away
before it is deleted, so nobody meets half of one, and none used within ``KEEP_S`` goes: a path that
was just handed out stays valid until it is loaded. So the limit may be exceeded for that long.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIMIT_BYTES = 1 << 30
KEEP_S = 3600.0
SCRATCH = ".new-"  # a build under way, or one that was killed
TRASH = ".old-"
FOLDERS = ("builds", "headers", "failed", "networks", "predictions")
_EVERY = 64  # insertions between two looks: a look costs about 10 us an entry
_MAKING_S = 60.0  # between making a folder and locking it, or a file and renaming it
_insertions = itertools.count()


@dataclass(frozen=True, slots=True)
class Usage:
    """The entries of the cache and their bytes."""

    entries: int
    size: int

    def __str__(self) -> str:
        return f"{self.entries} entries, {self.size / (1 << 20):.1f} MiB"


@dataclass(frozen=True, slots=True, order=True)
class _Entry:
    used: float
    path: Path
    size: int


@contextlib.contextmanager
def scratch_in(folder: Path) -> Iterator[Path]:
    """A new folder for a build, locked while it goes on; the kernel ends the lock of a killed one.

    It is removed at the end, unless it was renamed.
    """
    path = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=folder))
    try:
        with _lock_of(path):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _lock_of(path: Path) -> Iterator[bool | None]:
    """Return whether nobody else holds the lock; None where the file system has no locks."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free: bool | None = True
        except BlockingIOError:
            free = False
        except OSError:
            free = None
        yield free
    finally:
        os.close(descriptor)


def sweep(root: Path) -> None:
    """Remove what killed builds left: once in a process, and it costs a look at names."""
    _sweep(root, time.time() - KEEP_S)


def usage(root: Path) -> Usage:
    """Entries and bytes of builds, headers, failures, networks and predictions in ``root``."""
    entries = list(_entries(root))
    return Usage(len(entries), sum(entry.size for entry in entries))


def note_insertion(root: Path) -> None:
    """Count a new entry; every so many of them, look at the size and evict."""
    if next(_insertions) % _EVERY == 0:
        evict(root)


def evict(root: Path, limit: int = LIMIT_BYTES, keep_s: float = KEEP_S) -> int:
    """Remove the oldest entries until the rest fits into ``limit`` bytes; returns how many went.

    Remains of killed builds go as well.
    """
    newest = time.time() - keep_s
    _sweep(root, newest)
    entries = sorted(_entries(root))
    excess = sum(entry.size for entry in entries) - limit
    gone = 0
    for entry in entries:
        if excess <= 0 or entry.used >= newest:
            break
        if _remove(entry.path, newest):
            excess -= entry.size
            gone += 1
    return gone


def clear(root: Path) -> int:
    """Remove every entry, and nothing else that lives in the cache directory."""
    gone = sum(_remove(entry.path, float("inf")) for entry in list(_entries(root)))
    _sweep(root, time.time() - KEEP_S)  # younger ones may be under way
    return gone


def _remove(path: Path, newest: float) -> bool:
    trash = path.with_name(f"{TRASH}{secrets.token_hex(8)}")
    try:
        path.rename(trash)
        if trash.stat().st_mtime >= newest:  # used since we looked
            trash.rename(path)
            return False
    except OSError:  # gone already, or made anew in the meantime
        pass
    _delete(trash)
    return True


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()


def _sweep(root: Path, newest: float) -> None:
    for path in _children(root):
        with contextlib.suppress(OSError):
            if path.name.startswith((SCRATCH, TRASH)) and _is_left(path, newest):
                _delete(path)


def _is_left(path: Path, newest: float) -> bool:
    """Return whether nobody works on it: its lock is free or, without locks, it is old."""
    used = path.stat().st_mtime
    if used >= time.time() - _MAKING_S and newest < time.time():
        return False  # perhaps not locked yet
    with _lock_of(path) as free:
        return free or (free is None and used < newest)


def _entries(root: Path) -> Iterator[_Entry]:
    for path in _children(root):
        if path.name.startswith("."):
            continue
        with contextlib.suppress(OSError):
            files = path.iterdir() if path.is_dir() else (path,)
            size = sum(map(_size, files))
            yield _Entry(path.stat().st_mtime, path, size)


def _size(file: Path) -> int:
    """Return bytes on the disk: of small files more than they hold."""
    stat = file.stat()
    return max(stat.st_size, 512 * stat.st_blocks)


def _children(root: Path) -> list[Path]:
    paths: list[Path] = []
    for name in FOLDERS:
        with contextlib.suppress(OSError):
            paths += (root / name).iterdir()
    return sorted(paths)
