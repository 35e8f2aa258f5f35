"""GridSample as networks compute it where ONNX's reference moves points instead of pixels."""

from __future__ import annotations

from itertools import product
from math import ceil, floor
from typing import Any

import numpy as np

from polysci.graph.graph import Node
from polysci.graph.reference.evaluation import Evaluation
from polysci.numerics.arrays import Array

ALPHA = -0.75  # of Keys' cubic convolution


def differs(node: Node) -> bool:
    """Whether a node reads between pixels by cubics whose taps are moved to the border."""
    cubic = node.attributes.get("mode") in ("cubic", "bicubic")
    return cubic and node.attributes.get("padding_mode") == "border"


def grid_sample(of: Evaluation) -> list[Array] | None:
    """The sum over four pixels along every axis, each of them inside."""
    node, known = of.node, of.known
    if not differs(node):
        return None
    x, grid = known[node.inputs[0]], known[node.inputs[1]]
    rank, images = x.ndim - 2, np.arange(len(x)).reshape(-1, *[1] * (grid.ndim - 2))
    pixels, shares = list[Array](), list[Array]()
    for at, size in enumerate(x.shape[2:]):
        place = (grid[..., rank - 1 - at] + 1) / 2
        place = place * (size - 1) if node.attributes.get("align_corners") else place * size - 0.5
        low = np.floor(place)
        taps = np.arange(-1, 3).reshape(-1, *[1] * place.ndim)
        pixels.append(np.clip(low + taps, 0, size - 1).astype(np.int64))
        shares.append(_share(np.abs(place - low - taps)))
    y = 0.0
    for chosen in product(range(4), repeat=rank):
        where = tuple(pixel[tap] for pixel, tap in zip(pixels, chosen, strict=True))
        weight = np.prod([share[tap] for share, tap in zip(shares, chosen, strict=True)], axis=0)
        y = y + np.moveaxis(x[(images, slice(None), *where)], -1, 1) * weight[:, None]
    return [np.asarray(y, x.dtype)]


def _share(t: Array) -> Array:
    """Keys' kernel, at a distance in pixels."""
    near = ((ALPHA + 2) * t - (ALPHA + 3)) * t * t + 1
    far = ((ALPHA * t - 5 * ALPHA) * t + 8 * ALPHA) * t - 4 * ALPHA
    return np.asarray(np.where(t <= 1, near, far))


def max_roi_pool(of: Evaluation) -> list[Array]:
    """The largest pixel of every cell of regions (image, left, top, right, bottom); 0 of none."""
    (x, regions), words = of.inputs, of.node.attributes
    cells, scale = words["pooled_shape"], words.get("spatial_scale", 1.0)
    y = np.zeros((len(regions), x.shape[1], *cells), x.dtype)
    for number, (image, *corners) in enumerate(regions):
        left, top, right, bottom = (floor(corner * scale + 0.5) for corner in corners)
        high, wide = max(bottom - top + 1, 1) / cells[0], max(right - left + 1, 1) / cells[1]
        for row, column in np.ndindex(*cells):
            rows, columns = _part(row, high, top), _part(column, wide, left)
            cell = x[int(np.clip(image, 0, len(x) - 1)), :, rows, columns]
            if cell.size:
                y[number, :, row, column] = cell.max(axis=(1, 2))
    return [y]


def _part(cell: int, size: float, start: int) -> Any:
    """The pixels of a cell along an axis."""
    return slice(max(start + floor(cell * size), 0), max(start + ceil((cell + 1) * size), 0))
