"""Gradients of softmax, of its logarithm, and of cross entropy on top of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polysci.graph.backward import Backward
from polysci.graph.formulas import derive
from polysci.graph.graph import Node


def softmax(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Softmax and its logarithm, along an axis; before opset 13 along all from one on."""
    y, dy, shape = node.outputs[0], dys[0], back.shape(node.outputs[0])
    old = back.graph.opset < 13
    first = int(node.attributes.get("axis", 1 if old else -1)) % len(shape)
    axes = range(first, len(shape)) if old else [first]
    return [_of_logarithm(back, y, dy, axes)] if node.op == "log_softmax" else [
        derive(back, "y * (dy - t)", y=y, dy=dy,
               t=back.total(derive(back, "dy * y", dy=dy, y=y), axes, keep=True))
    ]  # fmt: skip


def _of_logarithm(back: Backward, y: str, dy: str, axes: Sequence[int]) -> str:
    return derive(back, "dy - exp(y) * t", y=y, dy=dy, t=back.total(dy, axes, keep=True))


def cross_entropy(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """``(softmax - one hot) * share`` of a row, and what reaches the logarithm of softmax."""
    scores, labels, weights = node.inputs[0], node.inputs[1], node.input(2)
    shape, dtype = back.shape(scores), back.dtype(scores)
    log = back.also(node, 1, shape, dtype)
    parts = [_of_logarithm(back, log, dys[1], [1])] if len(dys) > 1 and dys[1] else []
    if dys[0]:
        rows = (shape[0], 1, *shape[2:])
        classes = np.arange(shape[1], dtype=back.dtype(labels))
        label = back.reshape(labels, rows)
        hot = derive(
            back, "label == classes", label=label,
            classes=back.constant(classes.reshape(-1, *[1] * (len(shape) - 2))),
        )  # fmt: skip
        share = _shares(back, node, back.reshape(labels, rows), weights, hot)
        dy = back.reshape(dys[0], rows) if node.attributes.get("reduction") == "none" else dys[0]
        text = "(share := dy * s) * exp(y) - select(hot, share, 0)"
        parts.append(derive(back, text, dy=dy, s=share, y=log, hot=hot))
    return [back.sum(parts), *[""] * (len(node.inputs) - 1)]


def _shares(back: Backward, node: Node, labels: str, weights: str, hot: str) -> str:
    """What the loss of each row counts in the result: 0 where its label is ignored."""
    dtype, ignored = back.dtype(node.inputs[0]), node.attributes.get("ignore_index")
    mean = node.attributes.get("reduction", "mean") == "mean"
    shape = back.shape(labels)
    if not weights and ignored is None:
        return back.number(1 / np.prod(shape) if mean else 1.0, dtype)
    share = back.number(1.0, dtype)
    if weights:
        wide = back.reshape(weights, (*back.shape(weights), *[1] * (len(shape) - 2)))
        share = back.total(derive(back, "select(hot, w, 0)", hot=hot, w=wide), [1], keep=True)
    if ignored is not None:
        share = derive(
            back, "select(label == ignored, 0, share)", label=labels, share=share,
            ignored=float(ignored),
        )  # fmt: skip
    if not mean:
        return share
    total = back.total(share, range(len(shape)))  # 0 where no row counts: its gradient is 0
    return derive(back, "share / select(t == 0, 1, t)", share=share, t=total)
