"""Which elements dropout keeps: random bits of their number, a seed, and a count of steps."""

from __future__ import annotations

from math import prod

from polysci.graph.graph import DROPOUT_MASK, Node
from polysci.graph.operators.builder import Builder
from polysci.loop_ir.expressions import Load, Position, apply, combine, constant

WORD = 1 << 32


def mask(build: Builder, node: Node) -> None:
    """The same for any threads, order of axes and instruction set."""
    y, (counter,) = node.outputs[0], node.inputs
    shape, ratio = build.shape(y), float(node.attributes["ratio"])
    if build.values[y].size > WORD:
        build.refuse(f"a mask of {build.values[y].size} elements: at most 2^32")
    steps = {f"i{at}": prod(shape[at + 1 :]) for at in range(len(shape))}
    seed, step = (apply("unsigned", Load(counter, (constant(at),))) for at in range(2))
    key = apply("add", seed, float(node.attributes["key"] % WORD))
    bits = apply("philox", apply("unsigned", Position(combine(steps))), step, key)
    build.define(node, apply("greater_equal", bits, float(round(ratio * WORD))))


OPERATORS = {DROPOUT_MASK: mask}
