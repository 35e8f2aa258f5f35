"""Cast and CastLike."""

from __future__ import annotations

from polysci.graph.graph import Node
from polysci.graph.operators.builder import STORED, Builder
from polysci.loop_ir.conversions import convert


def cast(build: Builder, node: Node) -> None:
    """The type of the output is known."""
    x, y = node.inputs[0], node.outputs[0]
    for name in (x, y):
        if build.dtype(name) not in STORED:
            build.refuse(f"elements of {build.dtype(name)}")
    build.define(node, convert(build.load(x, y), build.dtype(x), build.dtype(y)))


OPERATORS = {"Cast": cast, "CastLike": cast}
