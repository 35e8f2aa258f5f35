"""MaxRoiPool, which ONNX's reference lacks."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor
from typing import Any

import numpy as np

from polysci.graph.graph import Node
from polysci.numerics.arrays import Array


def max_roi_pool(node: Node, known: Mapping[str, Array]) -> Array:
    """The largest pixel of every cell of regions (image, left, top, right, bottom); 0 of none."""
    x, regions = (known[name] for name in node.inputs)
    cells, scale = node.attributes["pooled_shape"], node.attributes.get("spatial_scale", 1.0)
    y = np.zeros((len(regions), x.shape[1], *cells), x.dtype)
    for number, (image, *corners) in enumerate(regions):
        left, top, right, bottom = (floor(corner * scale + 0.5) for corner in corners)
        high, wide = max(bottom - top + 1, 1) / cells[0], max(right - left + 1, 1) / cells[1]
        for row, column in np.ndindex(*cells):
            rows, columns = _part(row, high, top), _part(column, wide, left)
            cell = x[int(np.clip(image, 0, len(x) - 1)), :, rows, columns]
            if cell.size:
                y[number, :, row, column] = cell.max(axis=(1, 2))
    return y


def _part(cell: int, size: float, start: int) -> Any:
    """The pixels of a cell along an axis."""
    return slice(max(start + floor(cell * size), 0), max(start + ceil((cell + 1) * size), 0))
