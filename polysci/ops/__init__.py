"""Operators: a problem's extents, its textbook loop nest, its NumPy reference, its words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from polysci.ops.conv2d import Conv2d

OPS: Mapping[str, type[Conv2d]] = MappingProxyType({"conv": Conv2d})


def parse_problem(text: str, layout: str = "nhwc", *, where: str = "") -> Conv2d:
    """The problem that benchdnn's words describe; ``where`` (``file:line``) goes before an error.

    Raises SpecError, with a caret under the offending word, or UnsupportedError.
    """
    return OPS["conv"].parse(text, layout, where=where)
