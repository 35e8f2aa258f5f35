"""Softmax, its logarithm, and cross entropy on top of it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from polysci.graph.builder import Backward
from polysci.graph.formulas import derive
from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder, attribute_axes, formula, whole
from polysci.graph.operators.reductions import reduce
from polysci.graph.operators.table import Operator
from polysci.loop_ir.expressions import (
    Computed,
    Expr,
    Index,
    Load,
    Position,
    Reduce,
    apply,
    axis,
    combine,
)


def _axes(build: Builder, node: Node) -> Sequence[int]:
    """The axis, as a list."""
    build.check_floats(node, node.inputs[0])
    return attribute_axes([node.attributes.get("axis", -1)], len(build.shape(node.inputs[0])))


def _make_reduced(build: Builder, node: Node, axes: Sequence[int], part: str, dtype: str) -> str:
    """A new tensor of x's shape, but 1 along axes."""
    shape = build.shape(node.inputs[0])
    kept = [1 if number in axes else size for number, size in enumerate(shape)]
    return build.fresh(f"{node.outputs[0]}.{part}", kept, dtype)


def softmax(build: Builder, node: Node) -> None:
    """Softmax and LogSoftmax."""
    (x,), y, axes = node.inputs, node.outputs[0], _axes(build, node)
    most = _make_reduced(build, node, axes, "max", build.dtype(x))
    build.define(node, reduce(build, x, axes, "max", keep=True), most)
    share, largest = _make_reduced(build, node, axes, "share", build.dtype(x)), build.load(most, y)
    if node.op == "log_softmax":
        sums = reduce(
            build, x, axes, "add", keep=True,
            before=lambda part: formula("exp(x - most)", x=part, most=largest),
        )  # fmt: skip
        build.define(node, formula("log(total)", total=sums), share)
        text, own = "x - most - share", x
    else:  # exponentials take longer than to write and read them again, as rows fit in a cache
        shape = build.shape(x)
        own = build.fresh(f"{y}.exp", shape, build.dtype(x))
        build.define(node, formula("exp(x - most)", x=build.load(x, y), most=largest), own)
        sums = reduce(build, own, axes, "add", keep=True)
        build.define(node, formula("1 / total", total=sums), share)
        text = "x * share"
    here = build.load(own, y)
    build.define(node, formula(text, x=here, most=largest, share=build.load(share, y)))


def hardmax(build: Builder, node: Node) -> None:
    """1 at the first of the largest elements, 0 elsewhere."""
    (x,), y, axes = node.inputs, node.outputs[0], _axes(build, node)
    shape = build.shape(x)
    where = _make_reduced(build, node, axes, "place", "int32")
    build.define(node, reduce(build, x, axes, "argmax", keep=True), where)
    place = combine(
        {f"i{at}": prod(shape[number] for number in axes if number > at) for at in axes}
    )
    same = apply("equal", apply("whole", Position(place)), build.load(where, y))
    build.define(node, apply("select", same, 1, 0))


REDUCTIONS = ("none", "sum", "mean")


def cross_entropy(build: Builder, node: Node) -> None:
    """SoftmaxCrossEntropyLoss; a label outside of all classes counts as the nearest of these."""
    x, labels = node.inputs[:2]
    build.check_floats(node, x)
    kind = str(node.attributes.get("reduction", "mean"))
    if kind not in REDUCTIONS:
        build.refuse(f"reduction {kind!r:.40}: expected one of {', '.join(REDUCTIONS)}")
    title, shape, dtype = node.outputs[0] or str(node), build.shape(labels), build.dtype(x)
    largest = reduce(build, x, [1], "max", keep=False)
    most = build.add(node, f"{title}.max", largest, shape, dtype)
    here = whole(build, most)
    sums = reduce(build, x, [1], "add", keep=False,
                  before=lambda score: formula("exp(x - most)", x=score, most=here))  # fmt: skip
    total = build.add(node, f"{title}.log", apply("log", sums), shape, dtype)
    if len(node.outputs) > 1 and node.outputs[1]:
        around = tuple(axis(at + (at > 0)) for at in range(len(shape)))
        terms = {"x": build.load(x, node.outputs[1]), "most": Load(most, around)}
        value = formula("x - most - total", total=Load(total, around), **terms)
        build.define(node, value, node.outputs[1])
    if node.outputs[0]:
        _loss(build, node, kind, build.load(total, most), here)


def _loss(build: Builder, node: Node, kind: str, log: Expr, most: Expr) -> None:
    """The loss of every row, or their sum, or that by the sum of their weights."""
    x, labels = node.inputs[:2]
    shape, title = build.shape(labels), node.outputs[0]
    label = whole(build, labels)
    index: list[Index] = [axis(at) for at in range(len(shape))]
    index.insert(1, Computed(label, build.shape(x)[1]))
    loss = formula("log - (x - most)", log=log, x=Load(x, tuple(index)), most=most)
    weight: Expr | None = None
    if node.input(2):
        weight = Load(node.input(2), (Computed(label, build.shape(x)[1]),))
        loss = apply("mul", loss, weight)
    ignored = node.attributes.get("ignore_index")
    if ignored is not None:
        same = apply("equal", label, float(ignored))
        loss = apply("select", same, 0, loss)
        one = apply("real" if build.dtype(x) == "float32" else "exact", 1.0)
        weight = apply("select", same, 0, weight or one)
    if kind == "none":
        build.define(node, loss)
        return
    value: Expr = _sum(build, build.add(node, f"{title}.rows", loss, shape, build.dtype(x)))
    if kind == "mean" and weight is None:
        value = apply("mul", value, 1 / prod(shape))
    elif kind == "mean":
        assert weight is not None
        shares = build.add(node, f"{title}.shares", weight, shape, build.dtype(x))
        weights = build.add(node, f"{title}.weight", _sum(build, shares), (), build.dtype(x))
        value = apply("div", value, Load(weights, ()))
    build.define(node, value)


def _sum(build: Builder, name: str) -> Reduce:
    return reduce(build, name, range(len(build.shape(name))), "add", keep=False)


def softmax_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Softmax and its logarithm, along an axis."""
    y, dy, rank = node.outputs[0], dys[0], len(back.shape(node.outputs[0]))
    axes = [int(node.attributes.get("axis", -1)) % rank]
    return [_of_logarithm(back, y, dy, axes)] if node.op == "log_softmax" else [
        derive(back, "y * (dy - t)", y=y, dy=dy,
               t=back.total(derive(back, "dy * y", dy=dy, y=y), axes, keep=True))
    ]  # fmt: skip


def _of_logarithm(back: Backward, y: str, dy: str, axes: Sequence[int]) -> str:
    return derive(back, "dy - exp(y) * t", y=y, dy=dy, t=back.total(dy, axes, keep=True))


def cross_entropy_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """``(softmax - one hot) * share`` of a row, and what reaches the logarithm of softmax."""
    scores, labels, weights = node.inputs[0], node.inputs[1], node.input(2)
    shape, dtype = back.shape(scores), back.dtype(scores)
    log = back.also(node, 1, shape, dtype)
    parts = [_of_logarithm(back, log, dys[1], [1])] if len(dys) > 1 and dys[1] else []
    if dys[0]:
        rows = (shape[0], 1, *shape[2:])
        classes = np.arange(shape[1], dtype=back.dtype(labels))
        label = back.reshape(labels, rows)
        hot = derive(
            back, "label == classes", label=label,
            classes=back.constant(classes.reshape(-1, *[1] * (len(shape) - 2))),
        )  # fmt: skip
        share = _shares(back, node, back.reshape(labels, rows), weights, hot)
        dy = back.reshape(dys[0], rows) if node.attributes.get("reduction") == "none" else dys[0]
        text = "(share := dy * s) * exp(y) - select(hot, share, 0)"
        parts.append(derive(back, text, dy=dy, s=share, y=log, hot=hot))
    return [back.sum(parts), *[""] * (len(node.inputs) - 1)]


def _shares(back: Backward, node: Node, labels: str, weights: str, hot: str) -> str:
    """Return the weight of each row's loss in the result: 0 where its label is ignored."""
    dtype, ignored = back.dtype(node.inputs[0]), node.attributes.get("ignore_index")
    mean = node.attributes.get("reduction", "mean") == "mean"
    shape = back.shape(labels)
    if not weights and ignored is None:
        return back.number(1 / np.prod(shape) if mean else 1.0, dtype)
    share = back.number(1.0, dtype)
    if weights:
        wide = back.reshape(weights, (*back.shape(weights), *[1] * (len(shape) - 2)))
        share = back.total(derive(back, "select(hot, w, 0)", hot=hot, w=wide), [1], keep=True)
    if ignored is not None:
        share = derive(
            back, "select(label == ignored, 0, share)", label=labels, share=share,
            ignored=float(ignored),
        )  # fmt: skip
    if not mean:
        return share
    total = back.total(share, range(len(shape)))  # 0 where no row counts: its gradient is 0
    return derive(back, "share / select(t == 0, 1, t)", share=share, t=total)


ROWS = (
    Operator("softmax", "Softmax", softmax, gradient=softmax_gradient, dims="along"),
    Operator("log_softmax", "LogSoftmax", softmax, gradient=softmax_gradient, dims="along"),
    Operator("hardmax", "Hardmax", hardmax, dims="along"),
    Operator("cross_entropy", "SoftmaxCrossEntropyLoss", cross_entropy,
             gradient=cross_entropy_gradient),
)  # fmt: skip
