"""Operators: a problem's extents, its textbook loop nest, its NumPy reference, its words."""

from polysci.ops.conv_transpose2d import ConvTranspose2d
from polysci.ops.convolution_gradients import (
    BackwardData,
    BackwardWeights,
    Conv2dBackwardData,
    Conv2dBackwardWeights,
    Conv3dBackwardWeights,
)
from polysci.ops.convolutions import Conv1d, Conv2d, Conv3d
from polysci.ops.matmul import Matmul
from polysci.ops.nest import Nest
from polysci.ops.registry import (
    OPS,
    convolution,
    in_direction,
    parse_key,
    parse_problem,
    problem_of,
)

__all__ = [
    "OPS",
    "BackwardData",
    "BackwardWeights",
    "Conv1d",
    "Conv2d",
    "Conv2dBackwardData",
    "Conv2dBackwardWeights",
    "Conv3d",
    "Conv3dBackwardWeights",
    "ConvTranspose2d",
    "Matmul",
    "Nest",
    "convolution",
    "in_direction",
    "parse_key",
    "parse_problem",
    "problem_of",
]
