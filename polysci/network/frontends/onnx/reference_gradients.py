"""Own operators of backward passes in NumPy, as they are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from polysci.network.ir.graph import CONV_WEIGHTS_GRADIENT, Array, Node


def conv_weights(node: Node, known: Mapping[str, Array]) -> Sequence[Array]:
    """One product a tap: all pixels of filters by the pixels of channels that the tap reads."""
    x, dy = (known[name] for name in node.inputs)
    words = node.attributes
    taps, groups, axes = words["kernel_shape"], words["group"], x.ndim - 2
    wide = [(0, 0), (0, 0), *zip(words["pads"][:axes], words["pads"][axes:], strict=True)]
    padded = np.pad(x, wide)
    filters, channels = dy.shape[1] // groups, x.shape[1] // groups
    summed = [0, *range(2, x.ndim)]
    dw = np.zeros((dy.shape[1], channels, *taps), x.dtype)
    for tap in np.ndindex(*taps):
        steps = zip(tap, words["dilations"], words["strides"], dy.shape[2:], strict=True)
        read = [slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, s, n in steps]
        window = padded[(slice(None), slice(None), *read)]
        for group in range(groups):
            own = slice(group * filters, (group + 1) * filters)
            mine = window[:, group * channels : (group + 1) * channels]
            dw[(own, slice(None), *tap)] = np.tensordot(dy[:, own], mine, (summed, summed))
    return [dw]


# Operator -> its results, of a node and the values that are known.
GRADIENTS: Mapping[str, Callable[[Node, Mapping[str, Array]], Sequence[Array]]] = MappingProxyType(
    {CONV_WEIGHTS_GRADIENT: conv_weights}
)
