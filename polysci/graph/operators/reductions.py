"""Reductions over axes: sums, means, extremes, norms, the places of extremes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from polysci.graph.gradients import pooling
from polysci.graph.gradients import reductions as gradients
from polysci.graph.graph import Node
from polysci.graph.operators.builder import FLOATS, Builder, attribute_axes
from polysci.graph.operators.table import Operator
from polysci.graph.reference import reductions as reference
from polysci.loop_ir.expressions import Expr, Index, Load, Number, Reduce, apply, axis
from polysci.loop_ir.functions import convert
from polysci.polyhedral.affine import Affine


@dataclass(frozen=True, slots=True)
class _Row:
    """``after(function over axes of before(x))``; an empty name does nothing."""

    onnx: str
    function: str
    before: str = ""
    after: str = ""


_REDUCTIONS: Mapping[str, _Row] = {
    "reduce_sum": _Row("ReduceSum", "add"),
    "reduce_mean": _Row("ReduceMean", "add"),
    "reduce_prod": _Row("ReduceProd", "mul"),
    "reduce_max": _Row("ReduceMax", "max"),
    "reduce_min": _Row("ReduceMin", "min"),
    "reduce_l1": _Row("ReduceL1", "add", "abs"),
    "reduce_l2": _Row("ReduceL2", "add", "square", "sqrt"),
    "reduce_sum_square": _Row("ReduceSumSquare", "add", "square"),
    "reduce_log_sum": _Row("ReduceLogSum", "add", "", "log"),
}


def reduce(
    build: Builder,
    x: str,
    axes: Sequence[int],
    function: str,
    *,
    keep: bool,
    before: Callable[[Expr], Expr] = lambda element: element,
) -> Reduce:
    """``function`` of ``before(x)`` over axes; the others are axes of the result, in order."""
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
    return Reduce(function, tuple(over), before(Load(x, tuple(index))))


def reduced_axes(build: Builder, node: Node) -> tuple[int, ...]:
    """The axes of an attribute, or of an input in newer opsets; all where none are named."""
    rank, listed = len(build.shape(node.inputs[0])), node.attributes.get("axes")
    if node.input(1):
        known = build.known(node, 1, "axes")
        listed = None if known is None else [int(number) for number in known.reshape(-1)]
    if not listed and node.attributes.get("noop_with_empty_axes"):
        return ()
    return attribute_axes(listed or range(rank), rank)


def reduction(build: Builder, node: Node) -> None:
    """One of _REDUCTIONS; what rounds is computed in double where elements are whole numbers."""
    row, x, y = _REDUCTIONS[node.op], node.inputs[0], node.outputs[0]
    build.check_function(row.function, x)
    axes, dtype = reduced_axes(build, node), build.dtype(x)
    count = prod(build.shape(x)[number] for number in axes)
    mean = node.op == "reduce_mean"
    if mean and not count and build.values[y].size:
        build.refuse("a mean of nothing")
    if not count and row.function in ("max", "min") and np.dtype(dtype).itemsize < 4:
        build.define(node, Number(_extreme(dtype, row.function)))
        return
    rounds = dtype not in FLOATS and (mean or bool(row.after))
    inner = "float64" if rounds else dtype

    def before(element: Expr) -> Expr:
        element = convert(element, dtype, inner)
        return apply(row.before, element) if row.before else element

    keep = bool(node.attributes.get("keepdims", 1))
    total = reduce(build, x, axes, row.function, keep=keep, before=before)
    value: Expr = total if axes else total.body
    if mean:
        value = apply("div", value, count) if rounds else apply("mul", value, 1 / max(1, count))
    if row.after:
        value = apply(row.after, value)
    build.define(node, convert(value, inner, dtype))


def _extreme(dtype: str, function: str) -> float:
    """The maximum or minimum of no elements of a type narrower than its kind of number."""
    if dtype == "bool":
        return float(function == "min")
    limits = np.iinfo(dtype)
    return float(limits.min if function == "max" else limits.max)


def log_sum_exp(build: Builder, node: Node) -> None:
    """``log(sum(exp(x - most))) + most``, which overflows nowhere."""
    x, y = node.inputs[0], node.outputs[0]
    build.check_floats(node, x)
    axes, keep = reduced_axes(build, node), bool(node.attributes.get("keepdims", 1))
    if not axes:
        build.define(node, build.load(x, y))
        return
    most = build.fresh(f"{y}.max", build.shape(y), build.dtype(x))
    build.define(node, reduce(build, x, axes, "max", keep=keep), most)
    largest = Load(most, tuple(axis(at) for at in range(len(build.shape(y)))))
    anchor = apply("select", apply("isinf", largest), 0, largest)

    def before(element: Expr) -> Expr:
        return apply("exp", apply("sub", element, anchor))

    total = reduce(build, x, axes, "add", keep=keep, before=before)
    build.define(node, apply("add", apply("log", total), anchor))


def extreme_place(build: Builder, node: Node) -> None:
    """ArgMax and ArgMin: the first place, or the last one where that is asked for."""
    x = node.inputs[0]
    build.check_function("max", x)
    rank = len(build.shape(x))
    (along,) = attribute_axes([node.attributes.get("axis", 0)], rank)
    if not build.shape(x)[along] and build.values[node.outputs[0]].size:
        build.refuse("a place in an axis without elements")
    last = "last_" if node.attributes.get("select_last_index") else ""
    keep = bool(node.attributes.get("keepdims", 1))
    build.define(node, reduce(build, x, [along], f"{last}{node.op}", keep=keep))


def global_pool(build: Builder, node: Node) -> None:
    """GlobalAveragePool, GlobalMaxPool, GlobalLpPool: over all axes behind the first two."""
    x, y = node.inputs[0], node.outputs[0]
    build.check_floats(node, x)
    axes = range(2, len(build.shape(x)))
    count = prod(build.shape(x)[number] for number in axes)
    if not count and build.values[y].size:
        build.refuse("a pool of nothing")
    if node.op == "global_max_pool":
        build.define(node, reduce(build, x, axes, "max", keep=True))
    elif node.op == "global_lp_pool":
        power = float(node.attributes.get("p", 2))
        sums = reduce(build, x, axes, "add", keep=True, before=lambda part: to_power(part, power))
        build.define(node, root_of(sums, power))
    else:
        sums = reduce(build, x, axes, "add", keep=True)
        build.define(node, apply("mul", sums, 1 / max(1, count)))


def to_power(value: Expr, power: float) -> Expr:
    """``abs(value) ^ power``, a term of a norm."""
    if power == 2:
        return apply("square", value)
    size = apply("abs", value)
    return size if power == 1 else apply("pow", size, power)


def root_of(total: Expr, power: float) -> Expr:
    """The norm of a sum of such terms."""
    if power == 2:
        return apply("sqrt", total)
    return total if power == 1 else apply("pow", total, 1 / power)


def lp_normalisation(build: Builder, node: Node) -> None:
    """x by its norm along an axis; 0 where that is 0."""
    x, y = node.inputs[0], node.outputs[0]
    build.check_floats(node, x)
    (along,) = attribute_axes([node.attributes.get("axis", -1)], len(build.shape(x)))
    power = float(node.attributes.get("p", 2))
    shape = [1 if at == along else size for at, size in enumerate(build.shape(x))]
    norm = build.fresh(f"{y}.norm", shape, build.dtype(x))
    sums = reduce(build, x, [along], "add", keep=True, before=lambda part: to_power(part, power))
    build.define(node, root_of(sums, power), norm)
    size = build.load(norm, y)
    share = apply("div", build.load(x, y), size)
    build.define(node, apply("select", apply("equal", size, 0), 0, share))


ROWS = (
    *(Operator(name, row.onnx, reduction, gradient=gradients.rule_of(name), dims="reduced")
      for name, row in _REDUCTIONS.items()),
    Operator("reduce_log_sum_exp", "ReduceLogSumExp", log_sum_exp, gradient=gradients.reduction,
             dims="reduced"),
    Operator("argmax", "ArgMax", extreme_place, dims="reduced"),
    Operator("argmin", "ArgMin", extreme_place, dims="reduced"),
    Operator("global_average_pool", "GlobalAveragePool", global_pool,
             gradient=pooling.global_average, dims="images"),
    Operator("global_max_pool", "GlobalMaxPool", global_pool, gradient=pooling.maximum,
             reference=reference.global_maximum, dims="images"),
    Operator("global_lp_pool", "GlobalLpPool", global_pool, reference=reference.global_norm),
    Operator("lp_norm", "LpNormalization", lp_normalisation, reference=reference.by_norm,
             dims="along"),
)  # fmt: skip
