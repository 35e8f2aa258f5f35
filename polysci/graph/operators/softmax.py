"""Softmax, its logarithm, and the maximum as ones and zeros."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polysci.graph.gradients import softmax as gradients
from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder, attribute_axes
from polysci.graph.operators.reductions import reduce
from polysci.graph.operators.table import Operator
from polysci.graph.reference import reductions as reference
from polysci.loop_ir.expressions import Expr, Position, apply, combine


def _axes(build: Builder, node: Node) -> Sequence[int]:
    """One axis; before opset 13 all axes from one on."""
    build.check_floats(node, node.inputs[0])
    rank, old = len(build.shape(node.inputs[0])), build.graph.opset < 13
    (first,) = attribute_axes([node.attributes.get("axis", 1 if old else -1)], rank)
    return range(first, rank) if old else [first]


def _reduced(build: Builder, node: Node, axes: Sequence[int], part: str, dtype: str) -> str:
    """A new tensor of x's shape, but 1 along axes."""
    shape = build.shape(node.inputs[0])
    kept = [1 if number in axes else size for number, size in enumerate(shape)]
    return build.fresh(f"{node.outputs[0]}.{part}", kept, dtype)


def softmax(build: Builder, node: Node) -> None:
    """Softmax and LogSoftmax."""
    (x,), y, axes = node.inputs, node.outputs[0], _axes(build, node)
    most = _reduced(build, node, axes, "max", build.dtype(x))
    build.define(node, reduce(build, x, axes, "max", keep=True), most)
    total = _reduced(build, node, axes, "sum", build.dtype(x))
    largest = build.load(most, y)

    def before(element: Expr) -> Expr:
        return apply("exp", apply("sub", element, largest))

    build.define(node, reduce(build, x, axes, "add", keep=True, before=before), total)
    below, all_ = apply("sub", build.load(x, y), largest), build.load(total, y)
    if node.op == "log_softmax":
        build.define(node, apply("sub", below, apply("log", all_)))
    else:
        build.define(node, apply("div", apply("exp", below), all_))


def hardmax(build: Builder, node: Node) -> None:
    """1 at the first of the largest elements, 0 elsewhere."""
    (x,), y, axes = node.inputs, node.outputs[0], _axes(build, node)
    shape = build.shape(x)
    where = _reduced(build, node, axes, "place", "int32")
    build.define(node, reduce(build, x, axes, "argmax", keep=True), where)
    place = combine(
        {f"i{at}": prod(shape[number] for number in axes if number > at) for at in axes}
    )
    same = apply("equal", apply("whole", Position(place)), build.load(where, y))
    build.define(node, apply("select", same, 1, 0))


ROWS = (
    Operator("softmax", "Softmax", softmax, gradient=gradients.softmax, reference=reference.softmax,
             dims="along"),
    Operator("log_softmax", "LogSoftmax", softmax, gradient=gradients.softmax,
             reference=reference.log_softmax, dims="along"),
    Operator("hardmax", "Hardmax", hardmax, reference=reference.hardmax, dims="along"),
)  # fmt: skip
