"""The package's data files, and what installed packages add to our tables by entry points."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

from polysci.errors import SpecError

_PACKAGE = Path(__file__).resolve().parents[1]


def resource(*parts: str) -> Path:
    """Return the path of a data file: ``resource("models", "resnet50.txt")``.

    An installed package carries ``models/`` and ``microkernels/`` in its own ``_data`` folder; a
    checkout has them beside the package. The path is not checked to exist.
    """
    installed = _PACKAGE / "_data"
    return (installed if installed.is_dir() else _PACKAGE.parent).joinpath(*parts)


Row = TypeVar("Row")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Extension:
    """The object that an entry point names, and the package that declares it."""

    group: str
    name: str
    package: str
    value: Any

    def __str__(self) -> str:
        return f"package {self.package}, entry point {self.name!r} of {self.group}"


def extensions(group: str) -> Iterator[Extension]:
    """Yield the extensions that installed packages offer in a group, by package and name.

    What cannot be loaded is left out, with a logged warning that names the package.
    """
    points = sorted(entry_points(group=group), key=lambda point: (_package(point), point.name))
    for point in points:
        try:
            value = point.load()
        except (Exception, SystemExit) as error:  # whatever a module of others raises
            unloaded = Extension(group, point.name, _package(point), None)
            warn(unloaded, f"cannot be loaded: {type(error).__name__}: {error}")
        else:
            yield Extension(group, point.name, _package(point), value)


def add_each(group: str, add: Callable[[Extension], None]) -> None:
    """Call ``add`` with every extension of a group; its SpecError becomes a logged warning."""
    for extension in extensions(group):
        try:
            add(extension)
        except SpecError as error:
            warn(extension, str(error))


def warn(extension: Extension, reason: str) -> None:
    """Log why an extension is left out."""
    _log.warning("%s: left out: %s", extension, reason)


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "without a name"


class ExtensionTable(Mapping[str, Row]):
    """Rows by name: our own, until the first use adds what ``extend`` makes of them.

    A package that reads the table while it is being loaded sees our own rows.
    """

    def __init__(
        self,
        own: Mapping[str, Row],
        extend: Callable[[Mapping[str, Row]], Mapping[str, Row]],
    ) -> None:
        self._rows = own
        self._extend: Callable[[Mapping[str, Row]], Mapping[str, Row]] | None = extend
        self._lock = RLock()

    def _all(self) -> Mapping[str, Row]:
        with self._lock:
            extend, self._extend = self._extend, None
            if extend is not None:
                self._rows = extend(self._rows)
            return self._rows

    def __getitem__(self, name: str) -> Row:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
