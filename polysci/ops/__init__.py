"""Operators: a problem's extents, its textbook loop nest, its NumPy reference, its words."""

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
from polysci.ops.conv2d import Conv2d
from polysci.ops.conv3d import Conv3d
from polysci.ops.conv_transpose2d import ConvTranspose2d
from polysci.ops.matmul import Matmul
from polysci.ops.nest import Nest
from polysci.ops.parsing import convolution, in_direction, parse_key, parse_problem, problem_of
from polysci.ops.registry import OPS, Operator

__all__ = [
    "OPS",
    "BackwardData",
    "BackwardWeights",
    "Conv1d",
    "Conv1dBackwardData",
    "Conv1dBackwardWeights",
    "Conv2d",
    "Conv2dBackwardData",
    "Conv2dBackwardWeights",
    "Conv3d",
    "Conv3dBackwardData",
    "Conv3dBackwardWeights",
    "ConvTranspose2d",
    "Matmul",
    "Nest",
    "Operator",
    "convolution",
    "in_direction",
    "parse_key",
    "parse_problem",
    "problem_of",
]
