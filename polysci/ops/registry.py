"""The table of operators: what parsing dispatches on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from polysci.errors import PolysciError
from polysci.ops.backward_data import (
    BackwardData,
    Conv1dBackwardData,
    Conv2dBackwardData,
    Conv3dBackwardData,
)
from polysci.ops.backward_weights import (
    BackwardWeights,
    Conv1dBackwardWeights,
    Conv2dBackwardWeights,
    Conv3dBackwardWeights,
)
from polysci.ops.conv1d import Conv1d
from polysci.ops.conv2d import Conv2d, grammar
from polysci.ops.conv2d.convolution import Convolution
from polysci.ops.conv3d import Conv3d
from polysci.ops.conv_transpose2d import ConvTranspose2d
from polysci.ops.matmul import Matmul
from polysci.ops.nest import Nest
from polysci.ops.problem import Problem
from polysci.ops.words import Line, read
from polysci.text.suggestions import suggest

_OPERATOR = re.compile(r"\s*([A-Za-z][A-Za-z_]*)(?=[:\s]|\Z)")


@dataclass(frozen=True, slots=True)
class Operator:
    """A row: the class of its problems, the word that their text begins with, what reads it.

    ``parse(text, layout, dtype, where=)`` raises SpecError, with a caret under the offending part,
    or UnsupportedError. The operator whose ``word`` is empty reads every other text.
    """

    problem: type[Problem]
    word: str
    parse: Callable[..., Problem]


def begins_with(text: str, word: str) -> bool:
    """Whether a word of letters stands at the beginning of a text."""
    return re.match(rf"\s*{word}(?!\w)", text) is not None


def convolution_kind(text: str, where: str = "") -> type[Convolution]:
    """The class of a convolution in benchdnn's words: Conv3d where they speak of depth.

    Raises SpecError, with a caret under the offending word.
    """
    for kind in (Conv1d, Conv3d):
        if text.lstrip().startswith(kind.WORD):
            return kind
    return Conv3d if grammar.speaks_of_depth(read(Line(text, where), grammar.KEYS)) else Conv2d


def _unknown_operator(line: Line, match: re.Match[str]) -> PolysciError:
    """The error of a text that begins with a word of letters alone, which no row has."""
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


Gradients = Mapping[type[Convolution], type[BackwardData] | type[BackwardWeights]]
GRADIENTS: Mapping[str, Gradients] = MappingProxyType(
    {
        BackwardData.WORD: {
            Conv1d: Conv1dBackwardData,
            Conv2d: Conv2dBackwardData,
            Conv3d: Conv3dBackwardData,
        },
        BackwardWeights.WORD: {
            Conv1d: Conv1dBackwardWeights,
            Conv2d: Conv2dBackwardWeights,
            Conv3d: Conv3dBackwardWeights,
        },
    }
)


def _parse_gradient(
    word: str, text: str, layout: str = "nhwc", dtype: str = "f32", *, where: str = ""
) -> Problem:
    words = Line(text, where).behind(word)
    if begins_with(words, ConvTranspose2d.WORD):
        return ConvTranspose2d.parse(words, layout, dtype, where=where).gradient(word)
    kind = convolution_kind(words, where)
    return GRADIENTS[word][kind].parse(text, layout, dtype, where=where)


OPS: Mapping[str, Operator] = MappingProxyType(
    {
        "conv": Operator(Conv2d, "", parse_words),
        "conv1d": Operator(Conv1d, Conv1d.WORD, Conv1d.parse),
        "conv3d": Operator(Conv3d, Conv3d.WORD, Conv3d.parse),
        "nest": Operator(Nest, "nest", Nest.parse),
        "conv_backward_data": Operator(BackwardData, "bwd_d", partial(_parse_gradient, "bwd_d")),
        "conv_backward_weights": Operator(
            BackwardWeights, "bwd_w", partial(_parse_gradient, "bwd_w")
        ),
        "conv_transpose": Operator(ConvTranspose2d, ConvTranspose2d.WORD, ConvTranspose2d.parse),
        "matmul": Operator(Matmul, "mm", Matmul.parse),
        "linear": Operator(Matmul, "linear", Matmul.parse_linear),
    }
)
