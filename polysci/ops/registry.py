"""The table of operators: what parsing dispatches on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from polysci.ops.conv2d import Conv2d
from polysci.ops.conv2d_backward_data import Conv2dBackwardData
from polysci.ops.conv2d_backward_weights import Conv2dBackwardWeights
from polysci.ops.conv3d import Conv3d, parse_words
from polysci.ops.matmul import Matmul
from polysci.ops.nest import Nest
from polysci.ops.problem import Problem


@dataclass(frozen=True, slots=True)
class Operator:
    """A row: the class of its problems, the word that their text begins with, what reads it.

    ``parse(text, layout, dtype, where=)`` raises SpecError, with a caret under the offending part,
    or UnsupportedError. The operator whose ``word`` is empty reads every other text.
    """

    problem: type[Problem]
    word: str
    parse: Callable[..., Problem]


OPS: Mapping[str, Operator] = MappingProxyType(
    {
        "conv": Operator(Conv2d, "", parse_words),
        "conv3d": Operator(Conv3d, Conv3d.WORD, Conv3d.parse),
        "nest": Operator(Nest, "nest", Nest.parse),
        "conv_backward_data": Operator(Conv2dBackwardData, "bwd_d", Conv2dBackwardData.parse),
        "conv_backward_weights": Operator(
            Conv2dBackwardWeights, "bwd_w", Conv2dBackwardWeights.parse
        ),
        "matmul": Operator(Matmul, "mm", Matmul.parse),
        "linear": Operator(Matmul, "linear", Matmul.parse_linear),
    }
)
