"""Operators: a problem's extents, its textbook loop nest, its NumPy reference, its words."""

from polysci.ops.conv2d import Conv2d
from polysci.ops.conv2d_backward_data import Conv2dBackwardData
from polysci.ops.conv2d_backward_weights import Conv2dBackwardWeights
from polysci.ops.conv3d import Conv3d
from polysci.ops.matmul import Matmul
from polysci.ops.nest import Nest
from polysci.ops.parsing import convolution, in_direction, parse_key, parse_problem, problem_of
from polysci.ops.registry import OPS, Operator

__all__ = [
    "OPS",
    "Conv2d",
    "Conv2dBackwardData",
    "Conv2dBackwardWeights",
    "Conv3d",
    "Matmul",
    "Nest",
    "Operator",
    "convolution",
    "in_direction",
    "parse_key",
    "parse_problem",
    "problem_of",
]
