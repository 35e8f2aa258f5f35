"""How far f32 Winograd may lie from the exact convolution, element by element."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from polysci.lower.winograd.rules import convolution
from polysci.numerics.arrays import Doubles
from polysci.ops.problem import Problem

# Lavin and Gray, Fast algorithms for convolutional neural networks, CVPR 2016: B^T, G and A^T.
INPUT: Mapping[int, Doubles] = MappingProxyType(
    {
        2: np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], float),
        4: np.array([
            [4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1],
        ], float),
    }
)  # fmt: skip
FILTER: Mapping[int, Doubles] = MappingProxyType(
    {
        2: np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]], float) / 2,
        4: np.array([
            [6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24],
        ], float) / 24,
    }
)  # fmt: skip
OUTPUT: Mapping[int, Doubles] = MappingProxyType(
    {
        2: np.array([[1, 1, 1, 0], [0, 1, -1, -1]], float),
        4: np.array([
            [1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1],
        ], float),
    }
)  # fmt: skip

# Roundings on the longest path through a transform's two passes, with or without fused
# multiply-adds: 2 of the filter's (double, then rounded), 2 x 1 or 2 x 3 into, 2 x 2 or 2 x 3 back.
_ROUNDINGS: Mapping[int, int] = MappingProxyType({2: 8, 4: 14})


def roundings(problem: Problem, m: int) -> int:
    """c of the bound: roundings that one product meets on its way into a result."""
    return convolution(problem).C + _ROUNDINGS[m]


def sizes(problem: Problem, x: NDArray[Any], w: NDArray[Any], m: int) -> Doubles:
    """``|A^T| [sum over c of (|G| |w| |G^T|) . (|B^T| |x| |B|)] |A|`` in float64, shaped as y.

    Times gamma of ``roundings`` it bounds the error of F(m x m, 3 x 3), whatever the order of the
    sums: Barabasz, Anderson, Soodhalter and Gregg, Error analysis and improving the accuracy of
    Winograd convolution for deep neural networks, ACM TOMS 46(4), 2020, section 4.
    """
    conv = convolution(problem)
    into, g, back = (abs(matrix[m]) for matrix in (INPUT, FILTER, OUTPUT))
    images = np.asarray(abs(x), np.float64)
    images = images if conv.layout == "nhwc" else images.transpose(0, 2, 3, 1)
    filters = np.einsum("ar,kcrs,bs->abck", g, np.asarray(abs(w), np.float64), g, optimize=True)
    results = np.empty((conv.N, conv.P, conv.Q, conv.K))
    for image, result in zip(images, results, strict=True):
        v = np.einsum("ai,pqcij,bj->abpqc", into, _tiles(image, conv, m), into, optimize=True)
        points = v.reshape(*v.shape[:2], -1, conv.C) @ filters
        points = points.reshape(*v.shape[:4], conv.K)
        whole = np.einsum("ia,abpqk,jb->piqjk", back, points, back, optimize=True)
        down, _, across, *_ = whole.shape
        result[...] = whole.reshape(down * m, across * m, conv.K)[: conv.P, : conv.Q]
    return results if conv.layout == "nhwc" else np.ascontiguousarray(results.transpose(0, 3, 1, 2))


def _tiles(image: Doubles, conv: Any, m: int) -> Doubles:
    """Tiles of (m + 2)^2 pixels, zeros where they leave the image: [p, q, c, i, j]."""
    high, wide = (-(-extent // m) * m + 2 for extent in (conv.P, conv.Q))
    padded = np.zeros((high, wide, conv.C))
    top, left = conv.pad
    part = image[: max(0, high - top), : max(0, wide - left)]
    padded[top : top + part.shape[0], left : left + part.shape[1]] = part
    windows = sliding_window_view(padded, (m + 2, m + 2), axis=(0, 1))
    return windows[::m, ::m]
