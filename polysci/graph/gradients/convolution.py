"""Gradients of convolutions: by data a transposed one, by weights an operator of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polysci.graph.backward import Backward
from polysci.graph.graph import CONV_WEIGHTS_GRADIENT, Node


def convolution(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Conv: weights of both directions lie alike."""
    x, w, dy = node.inputs[0], node.inputs[1], dys[0]
    words = _words(back, node, x, node.outputs[0])
    dx = _weigh(back, "conv_transpose", (dy, w), x, words) if back.wants(x) else ""
    dw = _weigh(back, CONV_WEIGHTS_GRADIENT, (x, dy), w, words) if back.wants(w) else ""
    return [dx, dw, *_bias(back, node, dy)]


def conv_transpose(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """ConvTranspose: the small and the large images have changed places."""
    x, w, dy = node.inputs[0], node.inputs[1], dys[0]
    words = _words(back, node, node.outputs[0], x)
    dx = _weigh(back, "conv", (dy, w), x, words) if back.wants(x) else ""
    dw = _weigh(back, CONV_WEIGHTS_GRADIENT, (dy, x), w, words) if back.wants(w) else ""
    return [dx, dw, *_bias(back, node, dy)]


def _weigh(back: Backward, op: str, inputs: Sequence[str], like: str, words: dict[str, Any]) -> str:
    if op != "conv_transpose":
        words = {name: value for name, value in words.items() if name != "output_padding"}
    return back.add(op, inputs, back.shape(like), back.dtype(like), **words)


def _bias(back: Backward, node: Node, dy: str) -> list[str]:
    """The sum over all but channels, where there is a bias."""
    if len(node.inputs) < 3:
        return []
    if not node.inputs[2] or not back.wants(node.inputs[2]):
        return [""]
    return [back.total(dy, [at for at in range(len(back.shape(dy))) if at != 1])]


def _words(back: Backward, node: Node, large: str, small: str) -> dict[str, Any]:
    """Attributes that say windows by numbers alone; between the larger images and the smaller."""
    taps, high, low = (back.shape(name)[2:] for name in (node.inputs[1], large, small))
    axes = len(taps)
    strides = list(node.attributes.get("strides") or [1] * axes)
    dilations = list(node.attributes.get("dilations") or [1] * axes)
    before = list(node.attributes.get("pads") or [0] * axes)[:axes]
    auto = str(node.attributes.get("auto_pad", "NOTSET"))
    reaches = [(low[at] - 1) * strides[at] + (taps[at] - 1) * dilations[at] + 1
               for at in range(axes)]  # fmt: skip
    if auto == "VALID":
        before = [0] * axes
    elif auto.startswith("SAME") or node.attributes.get("output_shape"):
        missing = [max(0, reach - size) for reach, size in zip(reaches, high, strict=True)]
        upper = auto == "SAME_UPPER"
        before = [total // 2 if upper else total - total // 2 for total in missing]
    after = [reaches[at] - high[at] - before[at] for at in range(axes)]
    return {
        "kernel_shape": list(taps), "strides": strides, "dilations": dilations,
        "pads": [*before, *(max(0, size) for size in after)],
        "output_padding": [max(0, -size) for size in after],
        "group": int(node.attributes.get("group", 1)),
    }  # fmt: skip
