"""The masks of dropout, bit for bit."""

from __future__ import annotations

import numpy as np

from polysci.graph.reference.evaluation import Evaluation
from polysci.numerics.arrays import Array

WORD = 1 << 32


def philox(low: Array, high: int, key: int) -> Array:
    """The first word of Philox2x32-10 (Salmon et al., Parallel Random Numbers, SC 2011)."""
    left, right = low.astype(np.uint64), np.full(low.shape, high, np.uint64)
    for number in range(10):
        product = left * np.uint64(0xD256D193)
        word = np.uint64((key + number * 0x9E3779B9) % WORD)
        left, right = (product >> np.uint64(32)) ^ word ^ right, product & np.uint64(WORD - 1)
    return left


def dropout_mask(of: Evaluation) -> list[Array]:
    """True where an element is kept."""
    (counter,), shape, node = of.inputs, of.results[0].shape, of.node
    seed, step = (int(value) for value in counter)
    key = (seed + node.attributes["key"]) % WORD
    bits = philox(np.arange(np.prod(shape, dtype=np.int64)), step % WORD, key)
    return [(bits >= round(node.attributes["ratio"] * WORD)).reshape(shape)]
