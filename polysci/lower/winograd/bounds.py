"""Error bounds of Winograd's algorithm, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci.lower.winograd.tiles import OutputTile, convolution, planes_of, steps_of
from polysci.numerics.arrays import Doubles
from polysci.ops.convolutions import Conv2d
from polysci.ops.problem import Problem

ROUNDING: Final = 2.0**-11  # largest relative error of rounding f32, or doubles to it, to f16
# Twice the largest error of a filter's smallest numbers, in ROUNDING of its largest one, which is
# 2^7 or more beside errors of 2^-25.
_STEP: Final = 2.0**-20


def count_roundings(conv: Conv2d, tile: OutputTile) -> int:
    """c of the bound: roundings that one product meets on its way into a result.

    Beside those of its sum and of both axes there are two of the filter: it is transformed in
    doubles, and rounded.
    """
    return conv.C // conv.groups + 2 + tile.down.roundings + tile.across.roundings


def bound_sizes(problem: Problem, x: NDArray[Any], w: NDArray[Any], tile: OutputTile) -> Doubles:
    """``|A^T| [sum over c of (|G| |w| |G^T|) . (|B^T| |x| |B|)] |A|`` in float64, shaped as y.

    Times gamma of ``count_roundings`` it bounds the error, in any order of the sums: Barabasz,
    Anderson, Soodhalter and Gregg, Error analysis and improving the accuracy of Winograd
    convolution for deep neural networks, ACM TOMS 46(4), 2020, section 4.
    """
    return _sizes(problem, np.absolute(x), np.absolute(w), tile, np.absolute)


def rounded_sizes(problem: Problem, x: NDArray[Any], w: NDArray[Any], tile: OutputTile) -> Doubles:
    """``|A^T| [sum over c of (|G w G^T| + s) . |B^T x B|] |A|`` in float64, shaped as y.

    s is 2^-20 of the largest number of the transformed filter, over its points and channels. Times
    ``ROUNDING`` it bounds what the errors of filters in f16 cause.
    """
    return _sizes(problem, x, w, tile, np.asarray, _STEP)


def _sizes(
    problem: Problem, x: NDArray[Any], w: NDArray[Any], tile: OutputTile,
    signs: Callable[[Doubles], Doubles], step: float = 0.0,
) -> Doubles:  # fmt: skip
    """Return sums of absolute products; ``signs`` is applied to matrices that transform x and w.

    Filters are larger by a ``step`` of their largest number.
    """
    conv, planes = convolution(problem), planes_of(problem)
    down, across = tile.down.matrices, tile.across.matrices
    images = np.asarray(x, np.float64)
    images = images if conv.layout == "nchw" else np.moveaxis(images, -1, 1)
    channels = (conv.C // planes.taps, planes.size, conv.H, conv.W)
    images = planes.expand(np.swapaxes(images.reshape(-1, *channels), 1, 2)).transpose(0, 2, 3, 1)
    taps = np.asarray(w, np.float64).reshape(conv.K, -1, planes.taps, *conv.taps)
    taps = np.swapaxes(taps, 1, 2).reshape(conv.w_shape)
    powers = signs(down[1]), signs(across[1])
    filters = abs(np.einsum("ar,kcrs,bs->abck", powers[0], taps, powers[1], optimize=True))
    filters += step * filters.max((0, 1, 2), initial=0.0)
    groups = (*filters.shape[:3], conv.groups, conv.K // conv.groups)
    filters = np.moveaxis(filters.reshape(groups), 3, 2)
    into, back = (signs(down[0]), signs(across[0])), (abs(down[2]), abs(across[2]))
    results = np.empty((conv.N, conv.P, conv.Q, conv.K))
    for image, result in zip(images, results, strict=True):
        windows = _tiles(image, conv, tile)
        v = abs(np.einsum("ai,pqcij,bj->abpqc", into[0], windows, into[1], optimize=True))
        own = v.reshape(*v.shape[:2], -1, conv.groups, conv.C // conv.groups)
        sums = np.moveaxis(own, 3, 2) @ filters
        points = np.moveaxis(sums, 2, 3).reshape(*v.shape[:4], conv.K)
        whole = np.einsum("ia,abpqk,jb->piqjk", back[0], points, back[1], optimize=True)
        high, tall, wide, broad, _ = whole.shape
        rows, cols = (places.reshape(-1) for places in _places(conv, tile, outputs=True))
        every = whole.reshape(high * tall, wide * broad, conv.K)
        real = (np.flatnonzero(rows < conv.P), np.flatnonzero(cols < conv.Q))
        result[np.ix_(rows[real[0]], cols[real[1]])] = every[np.ix_(*real)]
    return _ordered(problem, results)


def _ordered(problem: Problem, results: Doubles) -> Doubles:
    """Return (n * z, p, q, k) as y is laid out."""
    whole = results.reshape(-1, planes_of(problem).outputs, *results.shape[1:])
    ordered = whole if problem.layout == "nhwc" else np.moveaxis(whole, -1, 1)
    return np.ascontiguousarray(ordered).reshape(problem.y_shape)


def _tiles(image: Doubles, conv: Conv2d, tile: OutputTile) -> Doubles:
    """Tiles of pixels, zeros where they leave the image: [p, q, c, i, j]."""
    rows, cols = _places(conv, tile)
    top, left = conv.pad
    padded = np.zeros((rows.max(initial=0) + 1, cols.max(initial=0) + 1, conv.C))
    part = image[: max(0, len(padded) - top), : max(0, padded.shape[1] - left)]
    padded[top : top + part.shape[0], left : left + part.shape[1]] = part
    return padded[rows[:, None, :, None], cols[None, :, None, :]].transpose(0, 1, 4, 2, 3)


def _places(conv: Conv2d, tile: OutputTile, *, outputs: bool = False) -> list[NDArray[np.int64]]:
    """Return rows and columns of the pixels of tiles, of x with its padding or of y: [tile, i]."""
    found = []
    for axis, count, step in zip(
        (tile.down, tile.across), tile.count(conv), steps_of(conv), strict=True
    ):
        at = np.arange(count)
        first = at // step * axis.m * step + at % step
        if not outputs:
            first *= axis.stride
        found.append(first[:, None] + step * np.arange(axis.m if outputs else axis.points))
    return found
