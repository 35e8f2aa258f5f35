"""The convolution by NumPy: image to columns, then one matrix product a group, a band at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from polysci.ops.conv2d.extents import Conv2dExtents

if TYPE_CHECKING:
    from numpy.typing import NDArray

BAND = 1 << 25  # bytes of columns at a time: larger bands gain nothing and cost memory


def convolve(problem: Conv2dExtents, x: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
    """``conv(x, w)`` in the dtype of both, arrays in the problem's layout.

    Sums of products are formed in that dtype, so integers are exact as long as it holds every
    partial sum.
    """
    y = np.empty(problem.y_shape, x.dtype)
    images, results = (_channels_last(problem, array) for array in (x, y))
    weights = _weights(problem, w)
    for image, result in zip(images, results, strict=True):
        _convolve_image(problem, image, weights, result)
    return y


def _channels_last(problem: Conv2dExtents, array: NDArray[Any]) -> NDArray[Any]:
    return array if problem.layout == "nhwc" else array.transpose(0, 2, 3, 1)


def _weights(problem: Conv2dExtents, w: NDArray[Any]) -> NDArray[Any]:
    """KCRS as one (R*S*C/g, K/g) matrix a group."""
    grouped = w.reshape(problem.groups, problem.K // problem.groups, *w.shape[1:])
    columns = grouped.transpose(0, 3, 4, 2, 1).reshape(problem.groups, -1, grouped.shape[1])
    return np.ascontiguousarray(columns)


def _convolve_image(
    problem: Conv2dExtents, image: NDArray[Any], weights: NDArray[Any], result: NDArray[Any]
) -> None:
    """One (H, W, C) image into one (P, Q, K) result."""
    windows = _windows(problem, image)
    row = problem.Q * problem.C * problem.R * problem.S * image.itemsize
    rows = max(1, BAND // row)
    for first in range(0, problem.P, rows):
        band = windows[:, first : first + rows]
        columns = band.reshape(problem.groups, -1, weights.shape[1])
        product = np.matmul(columns, weights)
        result[first : first + rows] = product.transpose(1, 0, 2).reshape(
            band.shape[1], problem.Q, problem.K
        )


def _windows(problem: Conv2dExtents, image: NDArray[Any]) -> NDArray[Any]:
    """A view (groups, P, Q, R, S, C/g) of the padded image: what every output reads."""
    (sh, sw), (dh, dw), (top, left) = problem.stride, problem.dilation, problem.pad
    height = (problem.P - 1) * sh + (problem.R - 1) * dh + 1
    width = (problem.Q - 1) * sw + (problem.S - 1) * dw + 1
    used = image[: max(0, height - top), : max(0, width - left)]
    padded = np.zeros((height, width, problem.C), image.dtype)
    padded[top : top + used.shape[0], left : left + used.shape[1]] = used
    down, right, along = padded.strides
    per_group = problem.C // problem.groups
    shape = (problem.groups, problem.P, problem.Q, problem.R, problem.S, per_group)
    strides = (per_group * along, sh * down, sw * right, dh * down, dw * right, along)
    return as_strided(padded, shape, strides, writeable=False)
