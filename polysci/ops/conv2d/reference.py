"""The convolution by NumPy: image to columns, then one matrix product a group, a band at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from polysci.numerics.dtypes import precision_named, values
from polysci.ops.conv2d.extents import Conv2dExtents

if TYPE_CHECKING:
    from numpy.typing import NDArray

BAND = 1 << 25  # bytes of columns at a time: larger bands gain nothing and cost memory


def convolve(
    problem: Conv2dExtents,
    x: NDArray[Any],
    w: NDArray[Any],
    bias: NDArray[Any] | None = None,
    residual: NDArray[Any] | None = None,
    clamp: tuple[float, float] | None = None,
) -> NDArray[Any]:
    """``clip(conv(x, w) + bias + residual, *clamp)`` in the dtype of ``x``, arrays in the layout.

    Sums of products are formed in that dtype, so integers are exact as long as it holds every
    partial sum. What a narrow precision stores is widened first: whole numbers to int64, others to
    float64. Raises ValueError for an argument of another shape.
    """
    shapes = {"x": problem.x_shape, "w": problem.w_shape}
    shapes |= {"bias": (problem.K,), "residual": problem.y_shape}
    for name, array in (("x", x), ("w", w), ("bias", bias), ("residual", residual)):
        if array is not None and array.shape != shapes[name]:
            raise ValueError(f"{name}: expected shape {shapes[name]}, got {array.shape}")
    x, w, residual = _widened(problem, x, w, residual)
    y = np.empty(problem.y_shape, x.dtype)
    images, results = (_channels_last(problem, array) for array in (x, y))
    weights = _weights(problem, w.astype(x.dtype, copy=False))
    for image, result in zip(images, results, strict=True):
        _convolve_image(problem, image, weights, result)
    if bias is not None:
        results += bias
    if residual is not None:
        y += residual
    return y if clamp is None else np.clip(y, *clamp, out=y)


def _widened(
    problem: Conv2dExtents, x: NDArray[Any], w: NDArray[Any], residual: NDArray[Any] | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """The operands as numbers wide enough for sums, where they are as the precision stores them."""
    precision = precision_named(problem.dtype)
    if x.dtype != precision.x.numpy or precision.x.name == "f32":
        return x, w, residual
    wide = np.int64 if precision.integer else np.float64
    if residual is not None and residual.dtype == precision.y.numpy:
        residual = values(residual, precision.y).astype(wide)
    return values(x, precision.x).astype(wide), values(w, precision.w).astype(wide), residual


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
