"""Reductions over axes, sums and products of all elements before each one, norms by an axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from polysci.graph.builder import FLOATS, Backward, known_integers
from polysci.graph.formulas import Part, derive
from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder, attribute_axes, whole
from polysci.graph.operators.table import Evaluation, Operator
from polysci.loop_ir.expressions import (
    Expr,
    Guard,
    Index,
    Load,
    Number,
    Reduce,
    apply,
    axis,
    combine,
)
from polysci.loop_ir.functions import convert
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import Array
from polysci.program.stages import ViewStage


@dataclass(frozen=True, slots=True)
class _Row:
    """``after(function over axes of before(x))``; an empty name does nothing.

    ``gradient`` is that of x, with y and dy as wide as x, of n elements a result; as PyTorch has it
    where values are equal or 0.
    """

    onnx: str
    function: str
    gradient: str = ""
    before: str = ""
    after: str = ""


_SHARED = "select(x == y, dy / n, 0)"  # n elements are equal and share the gradient
_REDUCTIONS: Mapping[str, _Row] = {
    "reduce_sum": _Row("ReduceSum", "add", "dy"),
    "reduce_mean": _Row("ReduceMean", "add", "dy / n"),
    "reduce_prod": _Row("ReduceProd", "mul"),
    "reduce_max": _Row("ReduceMax", "max", _SHARED),
    "reduce_min": _Row("ReduceMin", "min", _SHARED),
    "reduce_l1": _Row("ReduceL1", "add", "dy * sign(x)", "abs"),
    "reduce_l2": _Row("ReduceL2", "add", "select(y == 0, 0, dy * x / y)", "square", "sqrt"),
    "reduce_sum_square": _Row("ReduceSumSquare", "add", "2 * dy * x", "square"),
    "reduce_log_sum": _Row("ReduceLogSum", "add", "dy / exp(y)", "", "log"),
    "reduce_log_sum_exp": _Row("ReduceLogSumExp", "", "dy * exp(x - y)"),  # see log_sum_exp
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


def reduction_axes(build: Builder, node: Node) -> tuple[int, ...]:
    """The axes that the second input lists; all where it lists none."""
    rank, known = len(build.shape(node.inputs[0])), build.known(node, 1, "axes")
    listed = [] if known is None else [int(number) for number in known.reshape(-1)]
    if not listed and node.attributes.get("noop_with_empty_axes"):
        return ()
    return attribute_axes(listed or range(rank), rank)


def reduction(build: Builder, node: Node) -> None:
    """Compute a row of _REDUCTIONS, in double where a result of whole numbers is rounded."""
    row, x, y = _REDUCTIONS[node.op], node.inputs[0], node.outputs[0]
    build.check_function(row.function, x)
    axes, dtype = reduction_axes(build, node), build.dtype(x)
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
    axes, keep = reduction_axes(build, node), bool(node.attributes.get("keepdims", 1))
    if not axes:
        build.define(node, build.load(x, y))
        return
    most = reduce(build, x, axes, "max", keep=keep)
    largest = whole(build, build.add(node, f"{y}.max", most, build.shape(y), build.dtype(x)))
    anchor = apply("select", apply("isinf", largest), 0, largest)

    def before(element: Expr) -> Expr:
        return apply("exp", apply("sub", element, anchor))

    total = reduce(build, x, axes, "add", keep=keep, before=before)
    build.define(node, apply("add", apply("log", total), anchor))


def arg_extreme(build: Builder, node: Node) -> None:
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
    sums = reduce(build, x, [along], "add", keep=True, before=lambda part: to_power(part, power))
    norm = build.add(node, f"{y}.norm", root_of(sums, power), shape, build.dtype(x))
    size = build.load(norm, y)
    share = apply("div", build.load(x, y), size)
    build.define(node, apply("select", apply("equal", size, 0), 0, share))


BLOCK = 32  # elements whose sums are made one by one; sums of blocks are added to them
_FUNCTIONS = {"cumsum": "add", "cumprod": "mul"}


@dataclass(slots=True)
class _ScanStages:
    """A scan of tensors along an axis; each block of BLOCK elements by itself, then of the blocks.

    So an error grows with the logarithm of the extent, and no step waits for the one before.
    """

    build: Builder
    node: Node
    function: str
    along: int

    def shape(self, x: str, *extents: int) -> tuple[int, ...]:
        """The shape of x with other extents for the axis."""
        shape = self.build.shape(x)
        return (*shape[: self.along], *extents, *shape[self.along + 1 :])

    def element(self, x: str, place: Affine, more: int = 0) -> Load:
        """An element of x, beside an axis that became ``more`` axes more."""
        rank = len(self.build.shape(x))
        index: list[Index] = [axis(at + more * (at > self.along)) for at in range(rank)]
        index[self.along] = place
        return Load(x, tuple(index))

    def mirror(self, x: str) -> str:
        """A copy of x, the last element first."""
        last = self.build.shape(x)[self.along] - 1
        place = combine({f"i{self.along}": -1}, last)
        return self.define(x, "mirror", self.build.shape(x), self.element(x, place))

    def run(self, x: str, *, exclusive: bool) -> str:
        """A tensor of the results for x."""
        extent = self.build.shape(x)[self.along]
        if extent <= 2 * BLOCK:
            return self.define(x, "scan", self.build.shape(x), self.upto(x, extent, exclusive))
        blocks = -(-extent // BLOCK)
        place = combine({f"i{self.along}": BLOCK, "r": 1})
        guards = (Guard(place, extent),) if extent % BLOCK else ()
        total = Reduce(self.function, (("r", BLOCK),), self.element(x, place), guards)
        before = self.run(self.define(x, "blocks", self.shape(x, blocks), total), exclusive=True)
        inside = self.upto(x, BLOCK, exclusive, extent)
        start = self.element(before, axis(self.along), 1)
        parts = self.define(
            x, "parts", self.shape(x, blocks, BLOCK), apply(self.function, start, inside)
        )
        joined = self.build.fresh(f"{x}.joined", self.shape(x, blocks * BLOCK), self.build.dtype(x))
        self.build.stages.append(ViewStage(str(self.node), joined, parts))
        if not extent % BLOCK:
            return joined
        return self.define(x, "scan", self.build.shape(x), self.element(joined, axis(self.along)))

    def upto(self, x: str, size: int, exclusive: bool, extent: int = 0) -> Expr:
        """Reduce the elements of a block up to this one; ``extent`` where there are several blocks.

        They come last to first in the iterator r, so that it alone says where they end.
        """
        own = self.along + bool(extent)
        inner = combine({f"i{own}": 1, "r": 1}, 1 - size - exclusive)
        guards, place = [Guard(inner, size)], inner
        if extent:
            place = combine({f"i{self.along}": BLOCK, **dict(inner.terms)}, inner.const)
            guards += [Guard(place, extent)] * bool(extent % BLOCK)
        body = self.element(x, place, bool(extent))
        return Reduce(self.function, (("r", size),), body, tuple(guards))

    def define(self, x: str, part: str, shape: tuple[int, ...], expr: Expr) -> str:
        return self.build.add(self.node, f"{x}.{part}", expr, shape, self.build.dtype(x))


def scan(build: Builder, node: Node) -> None:
    """CumSum and CumProd."""
    x = node.inputs[0]
    build.check_function(_FUNCTIONS[node.op], x)
    known = build.known(node, 1, "axis")
    if known is None or known.size != 1:
        build.refuse("axis: expected one number")
    (along,) = attribute_axes([int(known.reshape(-1)[0])], len(build.shape(x)))
    steps = _ScanStages(build, node, _FUNCTIONS[node.op], along)
    reverse = bool(node.attributes.get("reverse", 0))
    scanned = steps.run(
        steps.mirror(x) if reverse else x, exclusive=bool(node.attributes.get("exclusive", 0))
    )
    last = combine({f"i{along}": -1}, build.shape(x)[along] - 1)
    build.define(node, steps.element(scanned, last if reverse else axis(along)))


def reduction_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """Differentiate a row of _REDUCTIONS by its formula."""
    names, axes = _operands(back, node, dys)
    shape, text = back.shape(node.inputs[0]), _REDUCTIONS[node.op].gradient
    n: Part = prod(shape[at] for at in axes)
    if text == _SHARED:
        one = back.number(1.0, back.dtype(node.inputs[0]))
        n = back.total(derive(back, "select(x == y, one, 0)", one=one, **names), axes, keep=True)
    dx = back.expand(derive(back, text, n=n, **names), shape)
    return [dx, *[""] * (len(node.inputs) - 1)]


def _operands(
    back: Backward, node: Node, dys: Sequence[str]
) -> tuple[Mapping[str, str], Sequence[int]]:
    """x, y and dy, which keep the axes with one element, and these axes."""
    x, shape = node.inputs[0], back.shape(node.inputs[0])
    axes = known_integers(back, node, 1)
    if not axes:
        axes = [] if node.attributes.get("noop_with_empty_axes") else list(range(len(shape)))
    axes = [at % len(shape) for at in axes]
    kept = [1 if at in axes else size for at, size in enumerate(shape)]
    y, dy = (back.reshape(name, kept) for name in (node.outputs[0], dys[0]))
    return {"x": x, "y": y, "dy": dy}, axes


def norm_over(x: Array, axes: tuple[int, ...], power: float) -> Array:
    total: Array = (np.abs(x) ** power).sum(axis=axes, keepdims=True)
    return np.asarray(total ** (1 / power))


def lp_norm_reference(of: Evaluation) -> list[Array]:
    """LpNormalization: ONNX's reference sums numbers where their sizes are meant."""
    (x,), attributes = of.inputs, of.node.attributes
    axis = int(attributes.get("axis", -1)) % x.ndim
    size = norm_over(x, (axis,), float(attributes.get("p", 2)))
    return [np.asarray(np.where(size == 0, 0, x / np.where(size == 0, 1, size)), x.dtype)]


ROWS = (
    *(Operator(name, row.onnx, reduction if row.function else log_sum_exp,
               gradient=reduction_gradient if row.gradient else None, dims="reduced")
      for name, row in _REDUCTIONS.items()),
    Operator("argmax", "ArgMax", arg_extreme, dims="reduced_to_place"),
    Operator("argmin", "ArgMin", arg_extreme, dims="reduced_to_place"),
    Operator("lp_norm", "LpNormalization", lp_normalisation, reference=lp_norm_reference,
             dims="along"),
    Operator("cumsum", "CumSum", scan, dims="scanned"),
    Operator("cumprod", "CumProd", scan),
)  # fmt: skip
