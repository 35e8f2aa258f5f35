"""Files into a directory: all or none, and never over what somebody else put there."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from polysci.errors import PolysciError, SpecError
from polysci.export.project import MARK

Content = str | bytes | Callable[[], Iterable[bytes | memoryview]]
SCRATCH = ".polysci-"
_HEAD = 400  # bytes of a text file in which the mark stands


def write(
    out: Path,
    files: Mapping[str, Content],
    *,
    leftovers: Sequence[str] = (),
    force: bool = False,
) -> list[Path]:
    """Write ``files`` (relative path -> content) into ``out``, which is made if it is not there.

    Content that is large may come as a function that yields it piece by piece.

    Everything is written aside and then renamed, so that a failure leaves what was there before.
    ``leftovers`` are patterns of names that building an earlier export may have left. Raises
    SpecError if ``out`` is no directory or, without ``force``, holds anything else; PolysciError
    if it cannot be written.
    """
    check(out, files, leftovers=leftovers, force=force)
    made = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        _place(out, files)
    except OSError as error:
        if made:
            with contextlib.suppress(OSError):
                out.rmdir()
        raise _failure(out, error) from error
    return [out / path for path in files]


def check(
    out: Path, files: Collection[str], *, leftovers: Sequence[str] = (), force: bool = False
) -> None:
    """Raise what ``write`` would for a directory that is none or that holds other files.

    ``files`` may be patterns, of names that are not decided yet.
    """
    try:
        _check(out, files, (*leftovers, f"{SCRATCH}*"), force)
    except OSError as error:
        raise _failure(out, error) from error


def _failure(out: Path, error: OSError) -> PolysciError:
    reason = error.strerror or str(error)
    return PolysciError(f"{out}: cannot be written: {reason}; choose another directory")


def _check(out: Path, files: Collection[str], leftovers: Sequence[str], force: bool) -> None:
    if out.is_symlink() and not out.exists():
        raise SpecError(f"{out}: a symbolic link to nothing; give a directory")
    if not out.exists():
        return
    if not out.is_dir():
        raise SpecError(f"{out}: a file, expected a directory")
    if force:
        return
    if foreign := list(_foreign(out, "", files, leftovers)):
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise SpecError(
            f"{out}: holds other files ({', '.join(map(repr, foreign[:3]))}{more}); choose an "
            "empty directory, or force it to replace what has the same name"
        )


def _foreign(
    directory: Path, at: str, files: Collection[str], leftovers: Sequence[str]
) -> Iterator[str]:
    """Relative paths of what no export of these files has written."""
    for entry in sorted(directory.iterdir()):
        path = f"{at}{entry.name}"
        real = not entry.is_symlink()
        if any(fnmatch(entry.name, pattern) for pattern in leftovers):
            continue
        if real and entry.is_dir() and any(file.startswith(f"{path}/") for file in files):
            yield from _foreign(entry, f"{path}/", files, leftovers)
            continue
        known = any(fnmatch(path, file) for file in files)
        if not (real and known and entry.is_file() and _ours(entry)):
            yield path


def _ours(path: Path) -> bool:
    """Whether a file has our mark; a library has none, but lies beside text that does."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return MARK.encode() in head or head.startswith((b"\x7fELF", b"polysci "))


def _pieces(content: Content) -> Iterable[bytes | memoryview]:
    if callable(content):
        return content()
    return [content.encode() if isinstance(content, str) else content]


def _place(out: Path, files: Mapping[str, Content]) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=out))
    try:
        for path, content in files.items():
            aside = scratch / path
            aside.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as file:
                file.writelines(_pieces(content))
        for path in files:
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            (scratch / path).replace(out / path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
