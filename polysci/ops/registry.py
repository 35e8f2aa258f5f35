"""The table of operators, and the text of a problem read by it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from polysci.border.arguments import check_type
from polysci.border.guard import guard
from polysci.errors import PolysciError, SpecError, UnsupportedError
from polysci.numerics.dtypes import precision_named
from polysci.ops.conv_transpose2d import ConvTranspose2d
from polysci.ops.convolution_gradients import GRADIENTS, BackwardData, BackwardWeights
from polysci.ops.convolution_words import KEYS, speaks_of_depth
from polysci.ops.convolutions import Conv1d, Conv2d, Conv3d, Convolution
from polysci.ops.matmul import Matmul
from polysci.ops.nest import Nest
from polysci.ops.problem import Problem
from polysci.ops.words import Line, read
from polysci.text.names import suggest

_OPERATOR = re.compile(r"\s*([A-Za-z][A-Za-z_]*)(?=[:\s]|\Z)")


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """A row: the class of its problems, the word that their text begins with, what reads it.

    ``parse(text, layout, dtype, where=)`` raises SpecError, with a caret under the offending part,
    or UnsupportedError. The operator whose ``word`` is empty reads every other text.
    """

    problem: type[Problem]
    word: str
    parse: Callable[..., Problem]


def begins_with(text: str, word: str) -> bool:
    """Return whether a word of letters stands at the beginning of a text."""
    return re.match(rf"\s*{word}(?!\w)", text) is not None


def convolution_kind(text: str, where: str = "") -> type[Convolution]:
    """Return the class of a convolution in benchdnn's words: Conv3d where they speak of depth.

    Raises SpecError, with a caret under the offending word.
    """
    for kind in (Conv1d, Conv3d):
        if text.lstrip().startswith(kind.WORD):
            return kind
    return Conv3d if speaks_of_depth(read(Line(text, where), KEYS)) else Conv2d


def _unknown_operator(line: Line, match: re.Match[str]) -> PolysciError:
    """Return the error of a text that begins with a word of letters alone, which no row has."""
    name = match[1]
    words = [row.word for row in OPS.values() if row.word]
    meant = OPS[name].word if name in OPS else ""
    hint = f"; its word is {meant!r}" if meant else suggest(name, words) * (name not in OPS)
    rule = f"A text begins with {', '.join(words)}, or is words of a convolution: mb1ic64ih56.."
    return line.error(match.start(1), f"unknown operator {name!r}{hint}", rule)


def parse_words(
    text: str, layout: str = "nhwc", dtype: str = "f32", *, where: str = ""
) -> Convolution:
    """The convolution of benchdnn's words. Raises SpecError, with a caret, or UnsupportedError."""
    if match := _OPERATOR.match(text):
        raise _unknown_operator(Line(text, where), match)
    return convolution_kind(text, where).parse(text, layout, dtype, where=where)


def _gradient_kind(
    word: str, forward: type[Convolution]
) -> type[BackwardData] | type[BackwardWeights]:
    """Return the gradient of a kind of convolution whose text begins with a word."""
    return next(kind for kind in GRADIENTS[forward] if word == kind.WORD)


def _parse_gradient(
    word: str, text: str, layout: str = "nhwc", dtype: str = "f32", *, where: str = ""
) -> Problem:
    rest = Line(text, where).behind(word)
    if begins_with(rest, ConvTranspose2d.WORD):
        return ConvTranspose2d.parse(rest, layout, dtype, where=where).gradient(word)
    kind = _gradient_kind(word, convolution_kind(rest, where))
    return kind.parse(text, layout, dtype, where=where)


OPS: Mapping[str, ProblemKind] = MappingProxyType(
    {
        "conv": ProblemKind(Conv2d, "", parse_words),
        "conv1d": ProblemKind(Conv1d, Conv1d.WORD, Conv1d.parse),
        "conv3d": ProblemKind(Conv3d, Conv3d.WORD, Conv3d.parse),
        "nest": ProblemKind(Nest, "nest", Nest.parse),
        "conv_backward_data": ProblemKind(BackwardData, "bwd_d", partial(_parse_gradient, "bwd_d")),
        "conv_backward_weights": ProblemKind(
            BackwardWeights, "bwd_w", partial(_parse_gradient, "bwd_w")
        ),
        "conv_transpose": ProblemKind(ConvTranspose2d, ConvTranspose2d.WORD, ConvTranspose2d.parse),
        "matmul": ProblemKind(Matmul, "mm", Matmul.parse),
        "linear": ProblemKind(Matmul, "linear", Matmul.parse_linear),
    }
)


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
    """Return the problem that has this key. Raises SpecError where there is none."""
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
    """A convolution or transposed one, or its gradient: ``fwd``, or ``bwd_d`` or ``bwd_w``.

    Raises UnsupportedError for another operator, a gradient among them.
    """
    if isinstance(problem, ConvTranspose2d):
        return problem if direction == "fwd" else problem.gradient(direction)
    conv = convolution(problem)
    if direction == "fwd":
        return conv
    return _gradient_kind(direction, type(conv))(conv)


def convolution(problem: Problem) -> Convolution:
    """Return the problem as a convolution. Raises UnsupportedError for another operator."""
    if not isinstance(problem, Convolution):
        raise UnsupportedError(f"{problem}: expected a convolution")
    return problem
