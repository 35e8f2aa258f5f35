"""Own operators of backward passes in NumPy, as they are written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polysci.graph.graph import Node
from polysci.graph.reference.evaluation import Evaluation
from polysci.numerics.arrays import Array


def conv_weights(of: Evaluation) -> Sequence[Array]:
    """One product a tap: all pixels of filters by the pixels of channels that the tap reads."""
    x, dy = of.inputs
    words = of.node.attributes
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


_WINDOWS = ("kernel_shape", "strides", "pads", "dilations")


def says_windows(node: Node) -> bool:
    """Return whether the attributes of a transposed convolution are all numbers."""
    words = node.attributes
    return all(word in words for word in _WINDOWS) and not {"auto_pad", "output_shape"} & {*words}


def conv_transpose(of: Evaluation) -> Sequence[Array] | None:
    """A product a tap, added to the pixels of y that the tap reaches; ONNX's takes minutes."""
    if not of.results or not says_windows(of.node) or 0 in of.results[0].shape:
        return None
    (x, w, *bias), shape = of.inputs, of.results[0].shape
    words, axes = of.node.attributes, x.ndim - 2
    groups, pads, extents = words.get("group", 1), words["pads"], x.shape[2:]
    spans = [*zip(extents, words["strides"], words["dilations"], w.shape[2:], strict=True)]
    reached = [(n - 1) * s + (t - 1) * d + 1 for n, s, d, t in spans]
    sizes = map(max, reached, map(sum, zip(shape[2:], pads[:axes], strict=True)))
    y = np.zeros((*shape[:2], *sizes), x.dtype)
    filters, channels = w.shape[1], w.shape[0] // groups
    for tap in np.ndindex(*w.shape[2:]):
        steps = [slice(t * d, t * d + (n - 1) * s + 1, s)
                 for t, (n, s, d, _) in zip(tap, spans, strict=True)]  # fmt: skip
        for group in range(groups):
            own = slice(group * channels, (group + 1) * channels)
            made = np.tensordot(x[:, own], w[(own, slice(None), *tap)], ([1], [0]))
            part = slice(group * filters, (group + 1) * filters)
            y[(slice(None), part, *steps)] += np.moveaxis(made, -1, 1)
    inner = [slice(low, low + n) for low, n in zip(pads[:axes], shape[2:], strict=True)]
    y = y[(slice(None), slice(None), *inner)]
    return [y + bias[0].reshape(-1, *[1] * axes) if bias else y]
