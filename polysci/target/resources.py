"""Where the package keeps its data files: microkernels and models."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def resource(*parts: str) -> Path:
    """The path of a data file: ``resource("models", "resnet50.txt")``.

    An installed package carries ``models/`` and ``microkernels/`` in its own ``_data`` folder; a
    checkout has them beside the package. The path is not checked to exist.
    """
    installed = _PACKAGE / "_data"
    return (installed if installed.is_dir() else _PACKAGE.parent).joinpath(*parts)
