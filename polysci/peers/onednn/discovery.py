"""Find libraries: the one that is named, PyTorch's and the wheel's, or the loader's."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Final

from polysci.errors import UnsupportedError

WHEEL: Final = "onednn-cpu-gomp"  # of oneDNN's wheels the one on GNU's OpenMP runtime
INSTALL: Final = f"pip install {WHEEL}"
REMEDY: Final = f"{INSTALL}, or name a file: --library PATH"
_SONAME: Final = "libdnnl.so.3"
_PREFIX: Final = "libdnnl.so"


def find_libraries(library: str | None = None) -> list[Path]:
    """Shared objects: ``library`` or inside that folder, else of PyTorch and WHEEL, or the loader.

    Raises UnsupportedError, with the remedy, where there is none.
    """
    candidates = [_inside(Path(library))] if library else [*_of_torch(), _of_wheel()]
    paths = [*dict.fromkeys(path for path in candidates if path)]
    if not (paths or library) and (path := _of_loader()):
        paths = [path]
    if not paths:
        where = library or f"in PyTorch or the wheel {WHEEL}, no {_SONAME} of the loader"
        raise UnsupportedError(f"oneDNN: no library {where}: {REMEDY}")
    return paths


def _of_torch() -> list[Path]:
    """Find those beside PyTorch's libraries, which hide the oneDNN that is linked into them."""
    spec = importlib.util.find_spec("torch")
    folders = (Path(place) / "lib" for place in (spec and spec.submodule_search_locations) or ())
    files = (file for folder in folders for file in sorted(folder.glob("libdnnl*.so*")))
    return [file.resolve() for file in files if file.is_file()]


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
    rows = (line.split(maxsplit=5) for line in lines)
    files = (Path(line[5]) for line in rows if len(line) == 6)
    return next((file for file in files if file.name.startswith(_PREFIX)), None)
