"""Read whole files up to a limit, replace files; standard streams that are closed or full."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader, BufferedWriter
from os import PathLike
from pathlib import Path

from polysci.errors import SpecError, cut, cut_line

Kinds = tuple[Callable[[os.stat_result], bool], ...]
TEXT_LIMIT = 1 << 26  # bytes of a text that a person or this program wrote


def read_named(path: str | PathLike[str], limit: int = TEXT_LIMIT) -> bytes:
    """Return the contents of a file, or of a shell's pipe, that a user names. Raises OSError.

    A device, a named pipe, for whose writer this process might wait for ever, a name with a NUL
    byte and more than ``limit`` bytes are errors, too.
    """
    with open_named(path) as file:
        return read_whole(file, limit)


def open_named(path: str | PathLike[str]) -> BufferedReader:
    """Return a file, or a shell's pipe, that a user names, to be read. Raises as ``read_named``."""
    return _open(path, (_is_file, _is_unnamed_pipe), "a regular file or a shell's pipe")


def read_text(path: str | PathLike[str]) -> str:
    """Return the text of a file that a user names. Raises SpecError that says what it is not."""
    try:
        return read_named(path).decode("utf-8-sig")
    except OSError as error:
        raise SpecError(f"{cut_line(path)}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8 text: byte {error.start} is {error.reason}") from error


def read_stored(path: str | PathLike[str], limit: int = TEXT_LIMIT) -> bytes:
    """Return the bytes of a file that this program wrote.

    A pipe, which may never end, is an error.
    """
    with open_stored(path) as file:
        return read_whole(file, limit)


def open_stored(path: str | PathLike[str]) -> BufferedReader:
    """Return a regular file, to be read. Raises OSError for anything else."""
    return _open(path, (_is_file,), "a regular file")


@contextmanager
def replace_file(path: Path) -> Iterator[BufferedWriter]:
    """A new file, which becomes ``path`` when all is written; else ``path`` stays as it was.

    Raises OSError.
    """
    part = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    try:
        with part.open("xb") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        part.unlink(missing_ok=True)


def _open(path: str | PathLike[str], kinds: Kinds, expected: str) -> BufferedReader:
    name = os.fspath(path)
    if "\0" in name:
        raise OSError(errno.EINVAL, "the name holds a NUL byte", name)
    try:
        status = Path(name).stat()
    except UnicodeEncodeError:
        raise OSError(errno.EINVAL, "the name has characters that no file's name has") from None
    except OSError as error:  # whose own text repeats a name of any length
        raise OSError(error.errno, error.strerror, cut(name)) from None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not any(accepts(status) for accepts in kinds):
        raise OSError(errno.EINVAL, f"expected {expected}", name)
    return Path(name).open("rb")


def _is_file(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode)


def _is_unnamed_pipe(status: os.stat_result) -> bool:
    """Return whether it is a pipe of the kernel's own file system, as ``<(command)`` makes."""
    if not stat.S_ISFIFO(status.st_mode):
        return False
    ends = os.pipe()
    try:
        return os.fstat(ends[0]).st_dev == status.st_dev
    finally:
        for end in ends:
            os.close(end)


def read_whole(file: BufferedReader, limit: int) -> bytes:
    """Return the bytes that are left of a file. Raises OSError where there are more."""
    data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"expected at most {limit} bytes", file.name)
    return data


_STREAMS = (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))


def open_closed_streams() -> None:
    """Connect each closed standard stream to the null device, for this process and its children.

    A closed descriptor would go to the next file that is opened, and messages into that. What is
    written to a standard output that was closed fails, as on a full disk: it is lost.
    """
    for descriptor, (name, access) in enumerate(_STREAMS):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, access)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115


def output_fault() -> OSError | None:
    """Return why standard output did not take what was printed, if it did not.

    What is left of it is dropped, so that the interpreter does not try again as it ends.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        return error
    return None
