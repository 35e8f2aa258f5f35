"""Normalisations of groups of channels and of channels beside each other."""

from __future__ import annotations

import numpy as np

from polysci.graph.reference.evaluation import Evaluation
from polysci.numerics.arrays import Array


def groups(of: Evaluation) -> list[Array]:
    """A scale and a bias a group, before opset 21, or a channel: ONNX's reference sums in f32."""
    (x, scale, bias), node = of.inputs, of.node
    rows = x.reshape(len(x), node.attributes["num_groups"], -1)
    centred = rows - rows.mean(axis=2, keepdims=True)
    variance = (centred**2).mean(axis=2, keepdims=True)
    parts = centred / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    vectors = [np.repeat(value, x.shape[1] // len(value)) for value in (scale, bias)]
    factor, shift = (value.reshape(-1, *[1] * (x.ndim - 2)) for value in vectors)
    return [parts.reshape(x.shape) * factor + shift]


def local_response(of: Evaluation) -> list[Array]:
    """LRN of all channels: ONNX's reference treats as many as there are images."""
    (x,), node = of.inputs, of.node
    alpha, beta, bias = (
        node.attributes.get(name, default)
        for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    size = node.attributes["size"]
    wide = [(0, 0), ((size - 1) // 2, size // 2), *[(0, 0)] * (x.ndim - 2)]
    squares = np.pad(x * x, wide)
    sums = sum(squares[:, at : at + x.shape[1]] for at in range(size))
    return [x / (bias + alpha / size * sums) ** beta]
