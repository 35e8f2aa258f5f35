"""The table of operators: what parsing dispatches on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from polysci.ops.backward_data import BackwardData, Conv2dBackwardData, Conv3dBackwardData
from polysci.ops.backward_weights import (
    BackwardWeights,
    Conv2dBackwardWeights,
    Conv3dBackwardWeights,
)
from polysci.ops.conv2d import Conv2d
from polysci.ops.conv2d.convolution import Convolution
from polysci.ops.conv3d import Conv3d, convolution_kind, parse_words
from polysci.ops.matmul import Matmul
from polysci.ops.nest import Nest
from polysci.ops.problem import Problem
from polysci.ops.words import Line


@dataclass(frozen=True, slots=True)
class Operator:
    """A row: the class of its problems, the word that their text begins with, what reads it.

    ``parse(text, layout, dtype, where=)`` raises SpecError, with a caret under the offending part,
    or UnsupportedError. The operator whose ``word`` is empty reads every other text.
    """

    problem: type[Problem]
    word: str
    parse: Callable[..., Problem]


Gradients = Mapping[type[Convolution], type[BackwardData] | type[BackwardWeights]]
GRADIENTS: Mapping[str, Gradients] = MappingProxyType(
    {
        "bwd_d": {Conv2d: Conv2dBackwardData, Conv3d: Conv3dBackwardData},
        "bwd_w": {Conv2d: Conv2dBackwardWeights, Conv3d: Conv3dBackwardWeights},
    }
)


def _parse_gradient(
    word: str, text: str, layout: str = "nhwc", dtype: str = "f32", *, where: str = ""
) -> Problem:
    kind = convolution_kind(Line(text, where).behind(word), where)
    return GRADIENTS[word][kind].parse(text, layout, dtype, where=where)


OPS: Mapping[str, Operator] = MappingProxyType(
    {
        "conv": Operator(Conv2d, "", parse_words),
        "conv3d": Operator(Conv3d, Conv3d.WORD, Conv3d.parse),
        "nest": Operator(Nest, "nest", Nest.parse),
        "conv_backward_data": Operator(BackwardData, "bwd_d", partial(_parse_gradient, "bwd_d")),
        "conv_backward_weights": Operator(
            BackwardWeights, "bwd_w", partial(_parse_gradient, "bwd_w")
        ),
        "matmul": Operator(Matmul, "mm", Matmul.parse),
        "linear": Operator(Matmul, "linear", Matmul.parse_linear),
    }
)
