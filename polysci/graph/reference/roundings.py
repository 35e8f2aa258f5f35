"""Roundings to 8 bits of which a change in the last place of what is rounded decides.

A number half way between two whole ones is rounded to either, as the sum before it was rounded; a
whole step may come of it, and all that follows is as far from the reference. A nudge, in steps, is
added to what is rounded: how far results move says what such roundings decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci.graph.graph import QUANTISED_LSTM, Graph, Node

Array = NDArray[Any]
Nudge = Callable[[Sequence[int]], Any]  # shape -> what is added to each element, in steps
NUDGE: Final = 2.0**-7  # of a step: far more than sums in f32 are off by
ROUNDINGS: Final = (
    *("quantize", "DynamicQuantizeLinear", "quantized_conv", "quantized_matmul"),
    QUANTISED_LSTM,
)


def nudges(graph: Graph) -> Iterator[Nudge]:
    """All roundings up, all down, and some each way; none of a graph that rounds nothing."""
    if not any(node.op in ROUNDINGS for node in graph.nodes):
        return
    for way in (NUDGE, -NUDGE):
        yield lambda shape, way=way: np.full(shape, way)  # type: ignore[misc]
    for seed in range(2):
        random = np.random.default_rng(seed)
        yield lambda shape, random=random: random.choice((NUDGE, -NUDGE), shape)  # type: ignore[misc]


def nudged_inputs(node: Node, known: Mapping[str, Array], nudge: Nudge) -> Mapping[str, Array]:
    """The values that a node reads, with what it rounds a little further up or down."""
    x = known[node.inputs[0]]
    if not x.size or x.dtype.kind != "f":
        return known
    if node.op == "DynamicQuantizeLinear":
        low, high = min(x.min(), 0), max(x.max(), 0)
        inside = (x > low) & (x < high)  # its ends say how long a step is
        moved = x + inside * nudge(x.shape) * (high - low) / 255
    elif node.op == "quantize":
        scale = known[node.inputs[1]]
        if scale.ndim == 1 and scale.size > 1 and not node.attributes.get("block_size"):
            behind = x.ndim - 1 - int(node.attributes.get("axis", 1)) % x.ndim
            scale = scale.reshape(-1, *[1] * behind)
        moved = x + nudge(x.shape) * scale if scale.size == 1 or scale.ndim <= x.ndim else x
    else:
        return known
    return {**known, node.inputs[0]: moved.astype(x.dtype)}
