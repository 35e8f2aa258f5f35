"""One timing at a time on a machine, however many workers it has; compilers run between them."""

from __future__ import annotations

import fcntl
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polysci.errors import PolysciError


@contextmanager
def share_machine() -> Iterator[None]:
    """Work beside other work, but not beside a timing. Waits for the one that runs."""
    with _lock("turn", fcntl.LOCK_EX):
        lock = _open("machine", fcntl.LOCK_SH)
    try:
        yield
    finally:
        os.close(lock)


@contextmanager
def own_machine() -> Iterator[None]:
    """The machine alone, as far as workers of farms use it. Waits for what they do.

    Who waits for it holds back those that come later, as they would keep the machine from it.
    """
    with _lock("turn", fcntl.LOCK_EX), _lock("machine", fcntl.LOCK_EX):
        yield


@contextmanager
def _lock(name: str, kind: int) -> Iterator[None]:
    lock = _open(name, kind)
    try:
        yield
    finally:
        os.close(lock)


def _open(name: str, kind: int) -> int:
    """A locked file of this user and host, of any cache directory; closing it unlocks it."""
    folder = Path(tempfile.gettempdir())
    path = folder / f"polysci-{os.getuid()}-{platform.node()}-{name}.lock"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PolysciError(
            f"{path}: {error.strerror}; remove it, or give this worker another TMPDIR"
        ) from error
    fcntl.flock(file, kind)
    return file
