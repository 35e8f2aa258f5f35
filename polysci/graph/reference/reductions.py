"""Reductions and functions that ONNX's reference lacks or gets wrong, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType

import numpy as np
from scipy.special import erf

from polysci.graph.graph import Node
from polysci.numerics.arrays import Array


def _flat(node: Node, x: Array, function: Callable[[Array], Array]) -> Array:
    """A function of rows, of all axes from one on as one."""
    axis = int(node.attributes.get("axis", 1)) % x.ndim
    if not x.size:
        return x
    return function(x.reshape(prod(x.shape[:axis]), -1)).reshape(x.shape)


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


_FLAT: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {"Softmax": _softmax, "LogSoftmax": _log_softmax, "Hardmax": _hardmax}
)


def _global_maximum(node: Node, x: Array) -> Array:
    """The reference knows images of two axes alone."""
    return np.asarray(x.max(axis=tuple(range(2, x.ndim)), keepdims=True))


def _norm(x: Array, axes: tuple[int, ...], power: float) -> Array:
    total: Array = (np.abs(x) ** power).sum(axis=axes, keepdims=True)
    return np.asarray(total ** (1 / power))


def _global_norm(node: Node, x: Array) -> Array:
    """The reference has none."""
    return _norm(x, tuple(range(2, x.ndim)), float(node.attributes.get("p", 2)))


def _by_norm(node: Node, x: Array) -> Array:
    """The reference sums numbers where their sizes are meant."""
    axis = int(node.attributes.get("axis", -1)) % x.ndim
    size = _norm(x, (axis,), float(node.attributes.get("p", 2)))
    return np.asarray(np.where(size == 0, 0, x / np.where(size == 0, 1, size)), x.dtype)


def _softsign(node: Node, x: Array) -> Array:
    """The reference fails for a tensor without axes."""
    return np.asarray(x / (1 + np.abs(x)))


def _erf(node: Node, x: Array) -> Array:
    """The reference computes it in f32."""
    return np.asarray(erf(x), x.dtype)


def _gelu(node: Node, x: Array) -> Array:
    """By erf, or by tanh."""
    if node.attributes.get("approximate", "none") == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * (1 + erf(x / np.sqrt(2))))


_OTHERS: Mapping[str, Callable[[Node, Array], Array]] = MappingProxyType(
    {
        "GlobalMaxPool": _global_maximum,
        "GlobalLpPool": _global_norm,
        "LpNormalization": _by_norm,
        "Softsign": _softsign,
        "Erf": _erf,
        "Gelu": _gelu,
    }
)


def compute_reduction(node: Node, opset: int, known: Mapping[str, Array]) -> Array | None:
    """The result of a node that stands here; None for all others.

    Softmax and its kin run over all axes from one on before opset 13; the reference knows the
    newer one.
    """
    if node.op in _OTHERS:
        return _OTHERS[node.op](node, known[node.inputs[0]])
    if node.op in _FLAT and opset < 13:
        return _flat(node, known[node.inputs[0]], _FLAT[node.op])
    return None
