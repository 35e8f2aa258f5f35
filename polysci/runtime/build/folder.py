"""The cache directory: the user's own, or a private one for this process when that is unusable."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
import threading
from pathlib import Path
from stat import S_ISVTX, S_IWOTH

import platformdirs

log = logging.getLogger("polysci.runtime.build")
_lock = threading.Lock()
_warned: set[str] = set()
_private: Path | None = None


def dir_of_settings() -> Path:
    """Return where the cache belongs: POLYSCI_CACHE_DIR, else the user's cache directory."""
    named = os.environ.get("POLYSCI_CACHE_DIR")
    if named:
        return Path(named).absolute()
    return platformdirs.user_cache_path("polysci")


def cache_dir() -> Path:
    """Return a directory that is ours alone and can be written to.

    Normally that of ``dir_of_settings``, created with mode 0700. If that cannot be trusted or used,
    one warning is logged and a private directory takes its place until this process ends.
    """
    path = dir_of_settings()
    problem = problem_of(path)
    return path if problem is None else instead_of(path, problem)


def dirs_to_read() -> list[Path]:
    """Return the directories to read from: the cache directory if it is the user's or root's, even
    if it cannot be written to; then the private directory that takes its place.
    """
    path = dir_of_settings()
    sound = _distrust(path, (os.geteuid(), 0)) is None
    private = _private if _private and problem_of(path) else None
    return [*([path] if sound else ()), *([private] if private else ())]


def problem_of(path: Path) -> str | None:
    """Return why the directory cannot hold our code, with a remedy; creates it if it is absent."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        return _without_access(error)
    if reason := _distrust(path, (os.geteuid(),)):
        return reason
    if not os.access(path, os.W_OK | os.X_OK) or os.statvfs(path).f_flag & os.ST_RDONLY:
        return "it is read-only; make it writable or set POLYSCI_CACHE_DIR"
    return None


def _without_access(error: OSError) -> str:
    return f"{error.strerror or error}; set POLYSCI_CACHE_DIR to a directory of yours"


def _distrust(path: Path, owners: tuple[int, ...]) -> str | None:
    """Return why others than ``owners`` may decide what the directory holds, with a remedy."""
    try:
        stat, link = path.stat(), path.lstat()
        loose = _loose_parent(path.resolve())
    except OSError as error:
        return _without_access(error)
    if stat.st_uid not in owners:
        return (
            f"it belongs to user {stat.st_uid}, not to you ({os.geteuid()}); "
            "set POLYSCI_CACHE_DIR to a directory of yours"
        )
    if link.st_uid not in owners:
        return (
            f"it is a link of user {link.st_uid}, not yours ({os.geteuid()}); "
            "set POLYSCI_CACHE_DIR to a directory of yours"
        )
    if loose:
        return (
            f"others may write to {loose} above it and so replace it; "
            f"chmod o-w {loose}, or set POLYSCI_CACHE_DIR to another directory"
        )
    if stat.st_mode & 0o022:
        return (
            f"others may write to it (mode {stat.st_mode & 0o777:04o}) and so choose the code you "
            f"run; remove what you do not trust, then: chmod 700 {path}"
        )
    return None


def _loose_parent(path: Path) -> Path | None:
    """The nearest directory above that all may write to, and in which all may rename anything."""
    modes = ((parent, parent.stat().st_mode) for parent in path.parents)
    return next((p for p, mode in modes if mode & S_IWOTH and not mode & S_ISVTX), None)


def instead_of(path: Path, problem: str) -> Path:
    """Return the private directory of this process; says once why ``path`` is not used."""
    global _private
    with _lock:
        message = f"cache directory {path}: {problem}"
        if message not in _warned:
            _warned.add(message)
            log.warning("%s. Builds of this process go to a private directory instead.", message)
        if _private is None or not _private.is_dir():
            _private = Path(tempfile.mkdtemp(prefix="polysci-"))
            atexit.register(_remove, _private, os.getpid())
        return _private


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child shares the path, not the duty
        shutil.rmtree(path, ignore_errors=True)
