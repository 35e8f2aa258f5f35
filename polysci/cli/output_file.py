"""The file that -o names: whether it can be written, asked before minutes of search; writing."""

from __future__ import annotations

from pathlib import Path

from polysci.errors import SpecError


def check_writable(path: str | None, option: str = "-o") -> None:
    """Raise SpecError where there is no folder for the file, or a folder in its place."""
    if path is None:
        return
    file = Path(path)
    if file.is_dir() or not file.parent.is_dir():
        why = "it is a folder" if file.is_dir() else f"there is no folder {file.parent}"
        raise SpecError(f"{option} {path}: cannot be written: {why}")


def write(text: str, path: str | None, option: str = "-o") -> None:
    """Write to the file ``path``, or to standard output."""
    if path is None:
        print(text)
        return
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{option} {path}: cannot be written: {error.strerror}") from None
