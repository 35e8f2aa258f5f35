"""Gradients of pools by their definition: each window hands its own to elements that it covers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from polysci.graph.graph import AVERAGE_POOL_GRADIENT, Node
from polysci.graph.reference.evaluation import Evaluation
from polysci.numerics.arrays import Array

Place = tuple[int, ...]


def pool_gradient(of: Evaluation) -> list[Array]:
    """The gradient of x."""
    node, known, shape = of.node, of.known, of.results[0].shape
    dy = known[node.inputs[0]]
    dx = np.zeros(shape, dy.dtype)
    for window in np.ndindex(*dy.shape[2:]):
        places, padded = _covered(node, window, shape[2:], dy.shape[2:])
        if not places:
            continue
        part = dy[(..., *window)]
        columns = tuple(np.array(places).T)
        if node.op == AVERAGE_POOL_GRADIENT:
            np.add.at(dx, (..., *columns), part[..., None] / padded)
            continue
        first = known[node.inputs[1]][(..., *columns)].argmax(-1)
        chosen = tuple(np.array(places)[first].transpose(2, 0, 1))
        images, channels = np.indices(part.shape)
        dx[(images, channels, *chosen)] += part
    return [dx]


def _covered(node: Node, window: Place, size: Place, out: Place) -> tuple[list[Place], int]:
    """Places in x that a window covers; and how many count in its average."""
    inside, counted = list[list[int]](), 1
    for at, (places, pads) in enumerate(_along(node, window, size, out)):
        inside.append([place for place in places if 0 <= place < size[at]])
        wide = bool(node.attributes.get("count_include_pad"))
        reach = range(-pads[0], size[at] + pads[1])
        counted *= len([place for place in places if place in reach] if wide else inside[-1])
    return [*product(*inside)], max(counted, 1)


def _along(
    node: Node, window: Place, size: Place, out: Place
) -> Iterator[tuple[list[int], tuple[int, int]]]:
    """By axis: the places of a window's taps, those in the padding included, and the padding."""
    rank, words = len(size), node.attributes
    taps, auto = words["kernel_shape"], words.get("auto_pad", "NOTSET")
    steps, gaps = (words.get(name) or [1] * rank for name in ("strides", "dilations"))
    pads = words.get("pads") or [0] * 2 * rank
    for at in range(rank):
        before, after = pads[at], pads[rank + at]
        if auto != "NOTSET":
            reach = (out[at] - 1) * steps[at] + (taps[at] - 1) * gaps[at] + 1
            both = max(0, reach - size[at]) if auto != "VALID" else 0
            before = (both + (auto == "SAME_LOWER")) // 2
            after = both - before
        first = window[at] * steps[at] - before
        yield [first + tap * gaps[at] for tap in range(taps[at])], (before, after)
