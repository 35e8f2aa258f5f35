"""Tensors of which data decides the length, as a graph has them: with 0 behind, and a count."""

from __future__ import annotations

import numpy as np

from polysci.graph.reference.evaluation import Evaluation
from polysci.numerics.arrays import Array


def non_zero(of: Evaluation) -> list[Array] | None:
    """The subscripts and how many there are; a node without a count is ONNX's."""
    if len(of.node.outputs) < 2:
        return None
    x = np.atleast_1d(of.inputs[0])
    places = np.zeros((x.ndim, x.size), np.int64)
    subscripts = np.nonzero(x)
    count = len(subscripts[0])
    places[:, :count] = subscripts
    return [places, np.array(count, np.int64)]


def suppress(of: Evaluation) -> list[Array] | None:
    """As many rows as could be, of images * classes * the most of a class, and a count."""
    node, known = of.node, of.known
    if "most" not in node.attributes:
        return None
    names = [node.input(at) for at in range(6)]
    boxes, scores = known[names[0]], known[names[1]]
    limit, share, least, count = (
        known[name].reshape(-1)[0] if name else default
        for name, default in zip(names[2:], (0, 0.0, None, boxes.shape[1]), strict=True)
    )
    centered, rows = bool(node.attributes.get("center_point_box", 0)), list[tuple[int, int, int]]()
    for image, kind in np.ndindex(*scores.shape[:2]):
        ends = _ends(boxes[image], centered)
        numbers = scores[image, kind, : int(count)]
        order = [int(at) for at in np.argsort(-numbers, kind="stable")]
        kept = list[int]()
        for at in order if least is None else [at for at in order if numbers[at] > least]:
            if len(kept) >= limit:
                break
            if not any(_overlap(ends[at], ends[other], share) for other in kept):
                kept.append(at)
        rows += [(image, kind, at) for at in kept]
    selected = np.zeros((scores[..., 0].size * node.attributes["most"], 3), np.int64)
    selected[: len(rows)] = np.array(rows, np.int64).reshape(-1, 3)
    return [selected, np.array(len(rows), np.int64)]


def _ends(boxes: Array, centered: bool) -> Array:
    """The lower ends of boxes, then the upper ones."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if centered:
        return np.concatenate([first - second / 2, first + second / 2], 1)
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], 1)


def _overlap(box: Array, other: Array, share: float) -> bool:
    sizes = np.minimum(box[2:], other[2:]) - np.maximum(box[:2], other[:2])
    areas = [float(np.prod(ends[2:] - ends[:2])) for ends in (box, other)]
    both = float(np.prod(sizes))
    return bool(sizes.min() > 0 and min(areas) > 0 and both / (sum(areas) - both) > share)
