"""Reductions that ONNX's reference lacks or gets wrong."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from polysci.graph.reference.evaluation import Evaluation
from polysci.numerics.arrays import Array


def _softmax(rows: Array) -> Array:
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    shares: Array = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _log_softmax(rows: Array) -> Array:
    below = rows - rows.max(axis=1, keepdims=True)
    logarithms: Array = below - np.log(np.exp(below).sum(axis=1, keepdims=True))
    return logarithms


def _hardmax(rows: Array) -> Array:
    ones = np.zeros_like(rows)
    ones[np.arange(len(rows)), rows.argmax(axis=1)] = 1
    return ones


def _flat(of: Evaluation, function: Callable[[Array], Array]) -> list[Array] | None:
    """A function of rows, of all axes from one on as one.

    So before opset 13; ONNX's reference knows the newer one.
    """
    if of.opset >= 13:
        return None
    (x,) = of.inputs
    axis = int(of.node.attributes.get("axis", 1)) % x.ndim
    return [function(x.reshape(prod(x.shape[:axis]), -1)).reshape(x.shape) if x.size else x]


def softmax(of: Evaluation) -> list[Array] | None:
    return _flat(of, _softmax)


def log_softmax(of: Evaluation) -> list[Array] | None:
    return _flat(of, _log_softmax)


def hardmax(of: Evaluation) -> list[Array] | None:
    return _flat(of, _hardmax)


def global_maximum(of: Evaluation) -> list[Array]:
    """The largest of all pixels: ONNX's reference knows images of two axes alone."""
    (x,) = of.inputs
    return [x.max(axis=tuple(range(2, x.ndim)), keepdims=True)]


def _norm(x: Array, axes: tuple[int, ...], power: float) -> Array:
    total: Array = (np.abs(x) ** power).sum(axis=axes, keepdims=True)
    return np.asarray(total ** (1 / power))


def global_norm(of: Evaluation) -> list[Array]:
    """The norm of all pixels, which ONNX's reference lacks."""
    (x,) = of.inputs
    return [_norm(x, tuple(range(2, x.ndim)), float(of.node.attributes.get("p", 2)))]


def by_norm(of: Evaluation) -> list[Array]:
    """LpNormalization: ONNX's reference sums numbers where their sizes are meant."""
    (x,), words = of.inputs, of.node.attributes
    axis = int(words.get("axis", -1)) % x.ndim
    size = _norm(x, (axis,), float(words.get("p", 2)))
    return [np.asarray(np.where(size == 0, 0, x / np.where(size == 0, 1, size)), x.dtype)]
