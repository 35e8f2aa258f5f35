"""Gradients of operators that move, repeat or leave out elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polysci.errors import UnsupportedError
from polysci.graph.backward import Backward, known
from polysci.graph.formulas import derive
from polysci.graph.graph import Node


def reshape(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Reshape, Flatten, Squeeze, Unsqueeze."""
    dx = back.reshape(dys[0], back.shape(node.inputs[0]))
    return [dx, *[""] * (len(node.inputs) - 1)]


def transpose(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    rank = len(back.shape(node.inputs[0]))
    order = node.attributes.get("perm") or list(range(rank))[::-1]
    return [back.transpose(dys[0], [int(at) for at in np.argsort(order)])]


def expand(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    return [back.unbroadcast(dys[0], back.shape(node.inputs[0])), ""]


def concat(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Every part gets its own."""
    along = int(node.attributes.get("axis", 1)) % len(back.shape(node.outputs[0]))
    made, first = list[str](), 0
    for name in node.inputs:
        last = first + back.shape(name)[along]
        made.append(cut(back, dys[0], along, first, last) if back.wants(name) else "")
        first = last
    return made


def cut(back: Backward, x: str, along: int, first: int, last: int) -> str:
    """The elements from one up to another along an axis."""
    shape = list(back.shape(x))
    shape[along] = last - first
    told = [back.constant(np.array([number], np.int64)) for number in (first, last, along)]
    return back.add("slice", (x, *told), shape, back.dtype(x))


def split(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """The parts together; zeros for those that nothing depends on."""
    x = node.inputs[0]
    shape, along = back.shape(x), int(node.attributes.get("axis", 0)) % len(back.shape(x))
    parts = [
        dy or back.constant(np.zeros(back.shape(name), back.dtype(x)))
        for name, dy in zip(node.outputs, dys, strict=True)
        if name
    ]
    made = back.add("concat", parts, shape, back.dtype(x), axis=along)
    return [made, *[""] * (len(node.inputs) - 1)]


def slices(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Zeros around and between the elements that were taken."""
    x, dx = node.inputs[0], dys[0]
    shape = back.shape(x)
    starts, ends, axes, steps = (
        known(back, node, at, name)
        for at, name in ((1, "starts"), (2, "ends"), (3, "axes"), (4, "steps"))
    )
    assert starts is not None and ends is not None
    axes = axes or list(range(len(starts)))
    for start, end, at, step in zip(starts, ends, axes, steps or [1] * len(starts), strict=True):
        taken = range(shape[at])[slice(start, end, step)]
        dx = _spread(back, dx, at % len(shape), taken, shape[at])
    return [dx, *[""] * (len(node.inputs) - 1)]


def _spread(back: Backward, x: str, along: int, places: range, extent: int) -> str:
    """Elements put to their places along an axis, with zeros elsewhere."""
    rank, shape = len(back.shape(x)), list(back.shape(x))
    shape[along] = extent
    if places == range(extent):
        return x
    if places.step == 1 and len(places):
        pads = [0] * (2 * rank)
        pads[along], pads[rank + along] = places.start, extent - places.stop
        told = back.constant(np.array(pads, np.int64))
        return back.add("pad", (x, told), shape, back.dtype(x))
    if not len(places):
        return back.constant(np.zeros(shape, back.dtype(x)))
    sources = [places.index(at) if at in places else 0 for at in range(extent)]
    real = np.array([at in places for at in range(extent)], back.dtype(x))
    told = back.constant(np.array(sources, np.int64))
    moved = back.add("gather", (x, told), shape, back.dtype(x), axis=along)
    mask = back.constant(real.reshape(-1, *[1] * (rank - along - 1)))
    return derive(back, "x * m", x=moved, m=mask)


def pad(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """What is inside x; of padding by a constant."""
    mode = node.attributes.get("mode", "constant")
    if mode != "constant":
        raise UnsupportedError(f"the gradient of padding of mode {mode}")
    x = node.inputs[0]
    shape, pads, axes = back.shape(x), known(back, node, 1, "pads"), known(back, node, 3, "axes")
    assert pads is not None
    turned = list(range(len(shape))) if axes is None else [at % len(shape) for at in axes]
    dx = dys[0]
    for at, axis in enumerate(turned):
        before, after = pads[at], pads[len(turned) + at]
        if before > 0 or after > 0:
            dx = cut(back, dx, axis, max(0, before), back.shape(dx)[axis] - max(0, after))
        left = range(max(0, -before), shape[axis] - max(0, -after))
        dx = _spread(back, dx, axis, left, shape[axis])
    return [dx, *[""] * (len(node.inputs) - 1)]
