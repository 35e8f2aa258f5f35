"""Places that are data, for ONNX's reference: moved inside of their axes, as networks move them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysci.graph.graph import Node
from polysci.graph.reference.evaluation import Evaluation
from polysci.numerics.arrays import Array

ALONG_AXIS = ("gather", "gather_elements", "scatter", "scatter_elements")


def with_places_inside(node: Node, known: Mapping[str, Array]) -> Mapping[str, Array]:
    """The tensors that a node reads, its indices from the first element of an axis to the last."""
    extents = _extents(node, known)
    if extents is None:
        return known
    position = 2 if node.op == "roi_align" else 1
    indices = known[node.inputs[position]]
    least = np.zeros_like(extents) if node.op == "roi_align" else -extents
    return {**known, node.inputs[position]: np.clip(indices, least, extents - 1)}


def _extents(node: Node, known: Mapping[str, Array]) -> NDArray[Any] | None:
    """Of the axes that the last axis of the indices names, or of the only one."""
    if node.op not in (*ALONG_AXIS, "gather_nd", "scatter_nd", "roi_align"):
        return None
    shape, indices = known[node.inputs[0]].shape, known[node.inputs[1]]
    if node.op == "roi_align":
        return np.array(shape[0], np.int64)
    if node.op in ALONG_AXIS:
        return np.array(shape[node.attributes.get("axis", 0)], indices.dtype)
    first = int(node.attributes.get("batch_dims", 0))
    return np.array(shape[first : first + indices.shape[-1]], indices.dtype)


def gather_elements(of: Evaluation) -> list[Array]:
    """GatherElements of any sizes: ONNX's reference takes few, and indices of the same shape."""
    x, indices = of.inputs
    places: list[Any] = [*np.indices(indices.shape, sparse=True)]
    places[of.node.attributes.get("axis", 0)] = indices
    return [x[tuple(places)]]


def max_unpool(of: Evaluation) -> list[Array]:
    """MaxUnpool whose indices count in the shape of the result."""
    node, known = of.node, of.known
    x, indices = known[node.inputs[0]], known[node.inputs[1]]
    if node.input(2):
        shape = [int(size) for size in known[node.inputs[2]]]
    else:
        taps = node.attributes["kernel_shape"]
        strides = node.attributes.get("strides") or [1] * len(taps)
        pads = node.attributes.get("pads") or [0] * 2 * len(taps)
        padding = [pads[at] + pads[len(taps) + at] for at in range(len(taps))]
        sizes = zip(x.shape[2:], taps, strides, padding, strict=True)
        shape = [*x.shape[:2], *((n - 1) * stride - pad + tap for n, tap, stride, pad in sizes)]
    y = np.zeros(shape, x.dtype)
    y.reshape(-1)[indices.reshape(-1)] = x.reshape(-1)
    return [y]
