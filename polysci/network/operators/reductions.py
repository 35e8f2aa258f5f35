"""Means, global pools and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from polysci.network.ir.expressions import Index, Load, Reduce, axis, constant
from polysci.network.ir.graph import Node
from polysci.network.operators.builder import Builder, apply, attribute_axes
from polysci.polyhedral.affine import Affine


def reduce(build: Builder, x: str, axes: Sequence[int], function: str, *, keep: bool) -> Reduce:
    """``function`` over axes of x; the others are axes of the result, in order."""
    shape, index, over, at = build.shape(x), list[Index](), list[tuple[str, int]](), 0
    for number, size in enumerate(shape):
        if number in axes:
            name = f"r{number}"
            over.append((name, size))
            index.append(Affine(((name, 1),)))
            at += keep
        else:
            index.append(axis(at))
            at += 1
    return Reduce(function, tuple(over), Load(x, tuple(index)))


def mean(build: Builder, node: Node) -> None:
    """ReduceMean; axes are an attribute, or an input since opset 18."""
    x = node.inputs[0]
    build.check_floats(node, x)
    rank, listed = len(build.shape(x)), node.attributes.get("axes")
    if node.input(1):
        known = build.known(node, 1, "axes")
        listed = None if known is None else [int(number) for number in known.reshape(-1)]
    if not listed and node.attributes.get("noop_with_empty_axes"):
        build.define(node, build.load(x, node.outputs[0]))
        return
    axes = attribute_axes(listed or range(rank), rank)
    keep = bool(node.attributes.get("keepdims", 1))
    _average(build, node, axes, keep=keep)


def global_average(build: Builder, node: Node) -> None:
    build.check_floats(node, node.inputs[0])
    _average(build, node, range(2, len(build.shape(node.inputs[0]))), keep=True)


def _average(build: Builder, node: Node, axes: Sequence[int], *, keep: bool) -> None:
    x = node.inputs[0]
    count = prod(build.shape(x)[number] for number in axes)
    if not count:
        build.refuse("a mean of nothing")
    total = reduce(build, x, axes, "add", keep=keep)
    build.define(node, apply("mul", total, 1 / count))


def softmax(build: Builder, node: Node) -> None:
    """Along one axis; before opset 13 along all axes from one on."""
    x, y = node.inputs[0], node.outputs[0]
    build.check_floats(node, x)
    rank, old = len(build.shape(x)), build.graph.opset < 13
    (first,) = attribute_axes([node.attributes.get("axis", 1 if old else -1)], rank)
    axes = range(first, rank) if old else [first]
    shape = [1 if number in axes else size for number, size in enumerate(build.shape(x))]
    if not prod(build.shape(x)):
        build.refuse("no elements")

    def one(name: str) -> Load:
        return Load(name, tuple(
            axis(number) if size > 1 else constant(0) for number, size in enumerate(shape)
        ))  # fmt: skip

    most = build.fresh(f"{y}.max", shape, build.dtype(x))
    build.define(node, reduce(build, x, axes, "max", keep=True), most)
    total = build.fresh(f"{y}.sum", shape, build.dtype(x))
    sums = reduce(build, x, axes, "add", keep=True)
    exponential = apply("exp", apply("sub", sums.body, one(most)))
    build.define(node, Reduce("add", sums.over, exponential), total)
    build.define(
        node, apply("div", apply("exp", apply("sub", build.load(x, y), one(most))), one(total))
    )


OPERATORS = {
    "ReduceMean": mean,
    "GlobalAveragePool": global_average,
    "Softmax": softmax,
}
