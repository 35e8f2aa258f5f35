"""Parse text to a problem: the first word chooses the row of OPS that reads it."""

from __future__ import annotations

from polysci.border.arguments import check_type
from polysci.border.guard import guard
from polysci.errors import SpecError, UnsupportedError
from polysci.numerics.dtypes import precision_named
from polysci.ops.conv2d.convolution import Convolution
from polysci.ops.conv_transpose2d import ConvTranspose2d
from polysci.ops.problem import Problem
from polysci.ops.registry import GRADIENTS, OPS, begins_with


@guard
def parse_problem(
    text: str, layout: str = "nhwc", dtype: str = "f32", *, where: str = ""
) -> Problem:
    """The problem that a text describes: a row's word and what follows it, or benchdnn's words.

    ``layout`` and ``dtype`` complete texts that do not say them, ``where`` (``file:line``) goes
    before an error. Raises SpecError, with a caret under the offending word, or UnsupportedError.
    """
    for name, value in (("text", text), ("layout", layout), ("dtype", dtype)):
        check_type(name, value, str)
    named = (row for row in OPS.values() if row.word and begins_with(text, row.word))
    plain = (row for row in OPS.values() if not row.word)
    return next(named, next(plain)).parse(text, layout, dtype, where=where)


def parse_key(key: str) -> Problem:
    """The problem that has this key. Raises SpecError where there is none."""
    words, _, dtype = key.rpartition(" ")
    if not words:
        raise SpecError(
            f"problem {key!r}: expected its words, then layout and dtype: '... nhwc f32'"
        )
    text, _, layout = words.rpartition(" ")
    laid_out = layout in ("nhwc", "nchw")
    problem = parse_problem(text, layout, dtype) if laid_out else parse_problem(words, "", dtype)
    if problem.key != key:
        raise SpecError(f"problem {key!r}: its text is that of {problem.key!r}")
    return problem


def problem_of(
    problem: Problem | str, layout: str | None = None, dtype: str | None = None
) -> Problem:
    """A problem, or the text of one, which ``layout`` ("nhwc") and ``dtype`` ("f32") complete.

    Raises TypeError for anything else, SpecError for another layout or dtype than the problem has.
    """
    check_type("problem", problem, Problem, str)
    for name, value in (("layout", layout), ("dtype", dtype)):
        check_type(name, value, str, type(None))
    if isinstance(problem, str):
        return parse_problem(problem, layout or "nhwc", dtype or "f32")
    if layout not in (None, problem.layout):
        raise SpecError(f"layout: the problem has {problem.layout!r}, got {layout!r} beside it")
    if dtype is not None and str(precision_named(dtype)) != problem.dtype:
        raise SpecError(f"dtype: the problem has {problem.dtype!r}, got {dtype!r} beside it")
    return problem


def in_direction(problem: Problem, direction: str) -> Problem:
    """A convolution or transposed one, or its gradient: ``fwd``, or the word of a row of GRADIENTS.

    Raises UnsupportedError for another operator, a gradient among them.
    """
    if isinstance(problem, ConvTranspose2d):
        return problem if direction == "fwd" else problem.gradient(direction)
    conv = convolution(problem)
    if direction == "fwd":
        return conv
    return GRADIENTS[direction][type(conv)](conv)


def convolution(problem: Problem) -> Convolution:
    """The problem as a convolution. Raises UnsupportedError for another operator."""
    if not isinstance(problem, Convolution):
        raise UnsupportedError(f"{problem}: expected a convolution")
    return problem
