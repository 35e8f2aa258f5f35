"""Operators of older opsets, for ONNX's reference, as those that took their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from polysci.graph.graph import Node
from polysci.numerics.arrays import Array

OPSET = 13  # of what takes their place, at least
SCALES = "\0scales"  # a name that no tensor of a model has


def as_newer(
    node: Node, opset: int, known: Mapping[str, Array]
) -> tuple[Node, int, Mapping[str, Array]]:
    """The node, its opset and the tensors that it reads, changed where it is older."""
    if node.op == "Scatter":
        return replace(node, op="ScatterElements"), max(opset, OPSET), known
    if node.op == "ReduceSum" and node.input(1):  # of a gradient, whatever the model's opset
        return node, max(opset, OPSET), known
    if node.op != "Upsample" and (node.op != "Resize" or opset >= 11):
        return node, opset, known
    listed = node.attributes.get("scales")
    scales = known[node.input(1)] if listed is None else np.array(listed, np.float32)
    words = {
        "mode": node.attributes.get("mode", "nearest"),
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    inputs = (node.inputs[0], "", SCALES)
    newer = replace(node, op="Resize", inputs=inputs, attributes=MappingProxyType(words))
    return newer, OPSET, {**known, SCALES: scales.astype(np.float32)}
