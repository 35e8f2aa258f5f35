"""Cross entropy on top of softmax, by a row's largest score and the sum of what is below it."""

from __future__ import annotations

from math import prod

from polysci.graph.gradients import softmax as gradients
from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.reductions import reduce
from polysci.graph.operators.table import Operator
from polysci.loop_ir.expressions import Computed, Expr, Index, Load, Reduce, apply, axis

REDUCTIONS = ("none", "sum", "mean")


def cross_entropy(build: Builder, node: Node) -> None:
    """SoftmaxCrossEntropyLoss; a label outside of all classes counts as the nearest of these."""
    x, labels = node.inputs[:2]
    build.check_floats(node, x)
    kind = str(node.attributes.get("reduction", "mean"))
    if kind not in REDUCTIONS:
        build.refuse(f"reduction {kind!r:.40}: expected one of {', '.join(REDUCTIONS)}")
    title, shape, dtype = node.outputs[0] or str(node), build.shape(labels), build.dtype(x)
    most = build.fresh(f"{title}.max", shape, dtype)
    build.define(node, reduce(build, x, [1], "max", keep=False), most)
    here = Load(most, tuple(axis(at) for at in range(len(shape))))
    total = build.fresh(f"{title}.log", shape, dtype)
    sums = reduce(
        build, x, [1], "add", keep=False,
        before=lambda score: apply("exp", apply("sub", score, here)),
    )  # fmt: skip
    build.define(node, apply("log", sums), total)
    if len(node.outputs) > 1 and node.outputs[1]:
        around = tuple(axis(at + (at > 0)) for at in range(len(shape)))
        score = apply("sub", build.load(x, node.outputs[1]), Load(most, around))
        build.define(node, apply("sub", score, Load(total, around)), node.outputs[1])
    if node.outputs[0]:
        _loss(build, node, kind, build.load(total, most), here)


def _loss(build: Builder, node: Node, kind: str, log: Expr, most: Expr) -> None:
    """The loss of every row, or their sum, or that by the sum of their weights."""
    x, labels = node.inputs[:2]
    shape, title = build.shape(labels), node.outputs[0]
    label = Load(labels, tuple(axis(at) for at in range(len(shape))))
    index: list[Index] = [axis(at) for at in range(len(shape))]
    index.insert(1, Computed(label, build.shape(x)[1]))
    loss: Expr = apply("sub", log, apply("sub", Load(x, tuple(index)), most))
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
    row = build.define(node, loss, build.fresh(f"{title}.rows", shape, build.dtype(x)))
    value: Expr = _sum(build, row)
    if kind == "mean" and weight is None:
        value = apply("mul", value, 1 / prod(shape))
    elif kind == "mean":
        assert weight is not None
        shares = build.define(node, weight, build.fresh(f"{title}.shares", shape, build.dtype(x)))
        whole = build.define(
            node, _sum(build, shares), build.fresh(f"{title}.weight", (), build.dtype(x))
        )
        value = apply("div", value, Load(whole, ()))
    build.define(node, value)


def _sum(build: Builder, name: str) -> Reduce:
    return reduce(build, name, range(len(build.shape(name))), "add", keep=False)


ROWS = (
    Operator("cross_entropy", "SoftmaxCrossEntropyLoss", cross_entropy,
             gradient=gradients.cross_entropy),
)  # fmt: skip
