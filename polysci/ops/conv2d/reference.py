"""The convolution by NumPy: image to columns, then one matrix product a group, a band at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from polysci.ops.conv2d.extents import ConvolutionExtents

if TYPE_CHECKING:
    from numpy.typing import NDArray

BAND = 1 << 25  # bytes of columns at a time: larger bands gain nothing and cost memory


def convolve(problem: ConvolutionExtents, x: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
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


def _channels_last(problem: ConvolutionExtents, array: NDArray[Any]) -> NDArray[Any]:
    return array if problem.layout == "nhwc" else np.moveaxis(array, 1, -1)


def _weights(problem: ConvolutionExtents, w: NDArray[Any]) -> NDArray[Any]:
    """KCRS as one (R*S*C/g, K/g) matrix a group."""
    grouped = w.reshape(problem.groups, problem.K // problem.groups, *w.shape[1:])
    columns = grouped.transpose(0, *range(3, grouped.ndim), 2, 1)
    return np.ascontiguousarray(columns.reshape(problem.groups, -1, grouped.shape[1]))


def _convolve_image(
    problem: ConvolutionExtents, image: NDArray[Any], weights: NDArray[Any], result: NDArray[Any]
) -> None:
    """One (H, W, C) image into one (P, Q, K) result."""
    windows = _windows(problem, image)
    row = windows[:, :1].size * image.itemsize
    rows = max(1, BAND // row)
    for first in range(0, len(result), rows):
        band = windows[:, first : first + rows]
        columns = band.reshape(problem.groups, -1, weights.shape[1])
        product = np.matmul(columns, weights).transpose(1, 0, 2)
        result[first : first + rows] = product.reshape(*band.shape[1 : result.ndim], problem.K)


def _windows(problem: ConvolutionExtents, image: NDArray[Any]) -> NDArray[Any]:
    """A view (groups, P, Q, R, S, C/g) of the padded image: what every output reads."""
    rows = zip(problem.pixels, problem.stride, problem.taps, problem.dilation, strict=True)
    reach = [(out - 1) * step + (taps - 1) * apart + 1 for out, step, taps, apart in rows]
    ends = [max(0, size - before) for size, before in zip(reach, problem.pad, strict=True)]
    used = image[tuple(map(slice, ends))]
    padded = np.zeros((*reach, problem.C), image.dtype)
    spans = zip(problem.pad, used.shape, strict=False)
    padded[tuple(slice(before, before + size) for before, size in spans)] = used
    *steps, along = padded.strides
    per_group = problem.C // problem.groups
    shape = (problem.groups, *problem.pixels, *problem.taps, per_group)
    outer = [step * byte for step, byte in zip(problem.stride, steps, strict=True)]
    inner = [apart * byte for apart, byte in zip(problem.dilation, steps, strict=True)]
    return as_strided(padded, shape, (per_group * along, *outer, *inner, along), writeable=False)
