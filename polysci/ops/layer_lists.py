"""Model files: lists of layers, one a line, or a C loop nest; and where the package keeps data."""

from __future__ import annotations

import os
import re
from os import PathLike
from pathlib import Path

from polysci.border.files import read_text
from polysci.errors import SpecError
from polysci.ops.nest import Nest, check_options
from polysci.ops.problem import Problem
from polysci.ops.registry import parse_problem
from polysci.target.extensions import resource
from polysci.text.names import known_name, suggest

# A comment starts at a '#' outside the quotes of the layer's name.
_LAYER = re.compile(r'[^"#]*(?:"(?:\\.|[^"\\])*(?:"[^#]*)?)?')


def names() -> list[str]:
    """Return names of the networks that come with the package, sorted."""
    return sorted(path.stem for path in resource("models").glob("*.txt"))


def load(
    path_or_name: str | PathLike[str], layout: str = "nhwc", dtype: str = "f32"
) -> list[Problem]:
    """The layers of a model file, in its order; ``resnet50`` stands for the package's own file.

    A file that ends in .c holds one loop nest. Raises SpecError with ``file:line:column`` and a
    caret for a line that breaks the grammar, and for a file that is missing, unreadable, not UTF-8
    or without layers; UnsupportedError for a nest that polysci does not compute.
    """
    path = _find(path_or_name)
    if path.suffix.lower() == ".onnx":
        raise SpecError(f"{path}: a whole model, not a list of layers: polysci compile {path}")
    if path.suffix == ".c":
        check_options(layout, dtype)
        return [Nest(path)]
    layers = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        layer = _LAYER.match(line)
        if layer and layer.group().strip():
            layers.append(parse_problem(layer.group(), layout, dtype, where=f"{path}:{number}"))
    if not layers:
        raise SpecError(f"{path}: no layers; it has one a line, and '#' starts a comment")
    return layers


def _find(path_or_name: str | PathLike[str]) -> Path:
    path = Path(path_or_name)
    if path.suffix or len(path.parts) != 1 or os.path.lexists(path):  # also of impossible names
        return path
    name = known_name(path.name, names())
    if name not in names():
        raise SpecError(
            f"no model {path.name!r}: neither a file nor one of {', '.join(names())}; "
            f"give a path or one of these names{suggest(path.name, names())}"
        )
    return resource("models", f"{name}.txt")
