"""Where the library's file is: the one that is named, the installed wheel's, or the loader's."""

from __future__ import annotations

import ctypes
import importlib.metadata
from pathlib import Path
from typing import Final

from polysci.errors import UnsupportedError

WHEEL: Final = "onednn-cpu-gomp"  # of oneDNN's wheels the one on GNU's OpenMP runtime
INSTALL: Final = f"pip install {WHEEL}"
REMEDY: Final = f"{INSTALL}, or name a file: --library PATH"
_SONAME: Final = "libdnnl.so.3"
_PREFIX: Final = "libdnnl.so"


def find_library(library: str | None = None) -> Path:
    """The shared object: ``library`` or inside that folder, else WHEEL's, else the loader's.

    Raises UnsupportedError, with the remedy, where there is none.
    """
    path = _inside(Path(library)) if library else _of_wheel() or _of_loader()
    if path is None:
        where = library or f"in the wheel {WHEEL}, no {_SONAME} of the loader"
        raise UnsupportedError(f"oneDNN: no library {where}: {REMEDY}")
    return path


def _inside(path: Path) -> Path | None:
    candidates = sorted(path.glob(f"{_PREFIX}*")) if path.is_dir() else [path]
    return next((file.resolve() for file in candidates if file.is_file()), None)


def _of_wheel() -> Path | None:
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    libraries = (Path(str(file.locate())) for file in files if file.name.startswith(_PREFIX))
    return next((path.resolve() for path in libraries if path.is_file()), None)


def _of_loader() -> Path | None:
    """The file that the loader takes for the name, which loads it."""
    try:
        ctypes.CDLL(_SONAME)
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return None
    words = (line.split(maxsplit=5) for line in lines)
    files = (Path(line[5]) for line in words if len(line) == 6)
    return next((file for file in files if file.name.startswith(_PREFIX)), None)
