"""Operators: a problem's extents, its textbook loop nest, its NumPy reference, its words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from polysci.errors import SpecError, UnsupportedError
from polysci.numerics.dtypes import precision_named
from polysci.ops.conv2d import Conv2d
from polysci.ops.nest import Nest
from polysci.ops.problem import Problem

OPS: Mapping[str, type[Conv2d] | type[Nest]] = MappingProxyType({"conv": Conv2d, "nest": Nest})


def parse_problem(
    text: str, layout: str = "nhwc", dtype: str = "f32", *, where: str = ""
) -> Problem:
    """The problem that a text describes: benchdnn's words, or ``nest`` and what follows it.

    ``layout`` and ``dtype`` are those of a convolution, ``where`` (``file:line``) goes before an
    error. Raises SpecError, with a caret under the offending word, or UnsupportedError.
    """
    if text.split(maxsplit=1)[:1] == ["nest"]:
        check_nest(layout, dtype)
        return Nest.parse(text, where=where)
    return Conv2d.parse(text, layout, dtype, where=where)


def check_nest(layout: str, dtype: str) -> None:
    """Raise SpecError for a layout or dtype that is not what every nest has."""
    if str(precision_named(dtype)) != "f32":
        raise SpecError(f"dtype {dtype!r}: a loop nest is computed in f32")
    if layout not in ("", "nhwc"):
        raise SpecError(f"layout {layout!r}: a loop nest has its arrays' own")


def problem_of(
    given: Problem | str, layout: str | None = None, dtype: str | None = None
) -> Problem:
    """A problem, or the text of one, which ``layout`` ("nhwc") and ``dtype`` ("f32") complete.

    Raises TypeError for anything else, SpecError for another layout or dtype than the problem has.
    """
    if isinstance(given, str):
        return parse_problem(given, layout or "nhwc", dtype or "f32")
    if not isinstance(given, Problem):
        raise TypeError(
            f"problem: expected a Conv2d, a Nest or benchdnn's words, got {type(given).__name__}"
        )
    if layout not in (None, given.layout):
        raise SpecError(f"layout: the problem has {given.layout!r}, got {layout!r} beside it")
    if dtype is not None and str(precision_named(dtype)) != given.dtype:
        raise SpecError(f"dtype: the problem has {given.dtype!r}, got {dtype!r} beside it")
    return given


def convolution(problem: Problem) -> Conv2d:
    """The problem as a convolution. Raises UnsupportedError for another operator."""
    if not isinstance(problem, Conv2d):
        raise UnsupportedError(f"{problem}: expected a convolution")
    return problem
