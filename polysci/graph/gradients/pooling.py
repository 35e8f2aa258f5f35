"""Gradients of pools: every element gathers from the windows that it is in."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polysci.graph.backward import Backward
from polysci.graph.formulas import derive
from polysci.graph.graph import AVERAGE_POOL_GRADIENT, MAX_POOL_GRADIENT, Node


def maximum(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """To the first of the largest elements of a window."""
    x = node.inputs[0]
    words = dict(node.attributes)
    if node.op == "global_max_pool":
        words["kernel_shape"] = list(back.shape(x)[2:])
    return [back.add(MAX_POOL_GRADIENT, (dys[0], x), back.shape(x), back.dtype(x), **words)]


def average(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """An equal share to each element of a window."""
    shape, dtype = back.shape(node.inputs[0]), back.dtype(node.inputs[0])
    return [back.add(AVERAGE_POOL_GRADIENT, (dys[0],), shape, dtype, **node.attributes)]


def global_average(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """An equal share to all."""
    shape = back.shape(node.inputs[0])
    return [back.expand(derive(back, "dy / n", dy=dys[0], n=prod(shape[2:])), shape)]
