"""Whole numbers that stand for real ones: conversions, convolutions and LSTM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from polysci.errors import SpecError
from polysci.graph.graph import QUANTISED_LSTM, Graph, Node
from polysci.graph.operators.builder import Builder, attribute_axes, formula, whole
from polysci.graph.operators.convolution import (
    Matrix,
    check_channels,
    layer,
    matrix_product,
    sum_parts,
    terms,
)
from polysci.graph.operators.recurrent import (
    Direction,
    recurrent,
    recurrent_reference,
)
from polysci.graph.operators.table import Nudge, Operator
from polysci.graph.operators.windows import spans
from polysci.loop_ir.expressions import (
    Expr,
    Index,
    Load,
    Lookup,
    Number,
    Reduce,
    apply,
    axis,
    constant,
)
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import Array
from polysci.numerics.quantization import Scales
from polysci.program.stages import LayerStage

SHORT = {"uint8": "u8", "int8": "s8"}
_NARROW = (*SHORT, "int16", "uint16")


def quantise(build: Builder, node: Node) -> None:
    """``saturate(rint(x / scale) + zero)``."""
    x, y = node.inputs[0], node.outputs[0]
    if build.dtype(y) not in _NARROW or build.dtype(x) not in ("float32", "int32"):
        build.refuse(f"{build.dtype(x)} to {build.dtype(y)}")
    scale, zero = (_parameter(build, node, node.input(at)) for at in (1, 2))
    text = "rint(real(x) / scale) + real(zero)"
    value = formula(text, x=build.load(x, y), scale=scale, zero=zero)
    build.define(node, saturate(value, build.dtype(y)))


def saturate(value: Expr, dtype: str) -> Expr:
    """A real whole number as one of a narrow type."""
    limits = np.iinfo(dtype)
    return formula("whole(min(max(x, a), b))", x=value, a=int(limits.min), b=int(limits.max))


def dequantise(build: Builder, node: Node) -> None:
    """``(x - zero) * scale``."""
    x, y = node.inputs[0], node.outputs[0]
    if build.dtype(y) != "float32" or build.dtype(x) not in (*_NARROW, "int32"):
        build.refuse(f"{build.dtype(x)} to {build.dtype(y)}")
    scale, zero = (_parameter(build, node, node.input(at)) for at in (1, 2))
    value = formula("(real(x) - real(zero)) * scale", x=build.load(x, y), zero=zero, scale=scale)
    build.define(node, value)


def _parameter(build: Builder, node: Node, name: str) -> Expr:
    """A scale or zero point of an element: of the tensor, one along an axis, or one a block."""
    y, shape = node.outputs[0], build.shape(node.outputs[0])
    if not name:
        return Number(0.0)
    own, block = build.shape(name), int(node.attributes.get("block_size", 0))
    if own in ((), (1,)) and not block:
        return build.load(name, y)
    (along,) = attribute_axes([node.attributes.get("axis", 1)], len(shape))
    if not block:
        if own != shape[along : along + 1]:
            build.refuse(f"{list(own)} parameters for axis {along} of y")
        return build.along(name, along)
    blocks = (*shape[:along], -(-shape[along] // block), *shape[along + 1 :])
    if own != blocks:
        build.refuse(f"{list(own)} parameters for blocks of {block} along axis {along} of y")
    index: list[Index] = [axis(at) for at in range(len(shape))]
    index[along] = Lookup(tuple(at // block for at in range(shape[along])), axis(along))
    return Load(name, tuple(index))


def linear_conv(build: Builder, node: Node) -> None:
    """QLinearConv: sums of whole numbers, scaled."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.inputs[:8]
    y = node.outputs[0]
    check_channels(build, node)
    call = _layer(build, node, w, x_zero, w_zero, "u8:s8:u8")
    parameters = (x_scale, w_scale, y_scale, y_zero)
    fixed = not node.input(8) or build.constant_value(node.input(8)) is not None
    if call and fixed and (scales := layer_scales(build, parameters)):
        problem = call.problem.with_(dtype=f"{SHORT[build.dtype(x)]}:s8:{SHORT[build.dtype(y)]}")
        build.stages.append(replace(call, problem=problem, scales=scales, bias=node.input(8)))
        return
    total = _sum_products(build, node, x, w, x_zero, w_zero, "exact")
    bias = build.along(node.input(8), 1) if node.input(8) else None
    terms = {"x": x_scale, "y": y_scale, "zero": y_zero}
    numbers = {term: _number(build, name) for term, name in terms.items()}
    define_rounded(build, node, total, bias, w=_channel(build, w_scale), **numbers)


def define_rounded(
    build: Builder, node: Node, total: Expr, bias: Expr | None, **terms: Expr
) -> None:
    """Define y by sums of whole numbers in double, scales of x, w and y, and the zero of y."""
    if bias is not None:
        total = formula("total + exact(bias)", total=total, bias=bias)
    text = "rint(total * (exact(x * w) / exact(y))) + exact(zero)"
    value = formula(text, total=total, **terms)
    build.define(node, saturate(value, build.dtype(node.outputs[0])))


def layer_scales(build: Builder, names: tuple[str, ...]) -> Scales | None:
    """Return the scales of a layer, where they are known and one for all rows."""
    known = [build.constant_value(name) for name in names]
    a, b, y, zero = known
    if a is None or b is None or y is None or zero is None or {a.size, y.size, zero.size} != {1}:
        return None
    factor = (a.reshape(-1).astype(np.float64) * b.reshape(-1) / y.reshape(-1)).reshape(-1)
    try:
        return Scales(factor if factor.size > 1 else float(factor[0]), int(zero.reshape(-1)[0]))
    except (ValueError, SpecError) as error:
        build.refuse(str(error))


def integer_conv(build: Builder, node: Node) -> None:
    """ConvInteger: sums of whole numbers."""
    x, w = node.inputs[:2]
    x_zero, w_zero = node.input(2), node.input(3)
    check_channels(build, node)
    call = _layer(build, node, w, x_zero, w_zero, f"{SHORT[build.dtype(x)]}:s8:s32")
    if call:
        build.stages.append(call)
        return
    build.define(node, _sum_products(build, node, x, w, x_zero, w_zero, "long"))


def _layer(
    build: Builder, node: Node, w: str, x_zero: str, w_zero: str, dtype: str
) -> LayerStage | None:
    """A layer, where weights are known and 8 bits hold them less their zero point."""
    x, value = node.inputs[0], build.constant_value(w)
    zero = build.constant_value(x_zero) if x_zero else np.zeros(1, np.int64)
    of_w = build.constant_value(w_zero) if w_zero else np.zeros(1, np.int64)
    windows = spans(node, build.shape(x), build.shape(w)[2:], build.shape(node.outputs[0]))
    usable = value is not None and zero is not None and of_w is not None and zero.size == 1
    if not usable or len(windows) > 2 or build.dtype(x) not in SHORT:
        return None
    assert value is not None and of_w is not None and zero is not None
    if not value.size:
        return None
    along = (-1, *[1] * (value.ndim - 1)) if of_w.size > 1 else ()
    moved = value.astype(np.int64) - of_w.astype(np.int64).reshape(along)
    if moved.min() < -128 or moved.max() > 127 or any(window.before < 0 for window in windows):
        return None
    name = build.number(f"{w}.s8", np.ascontiguousarray(moved.astype(np.int8)))
    groups = int(node.attributes.get("group", 1))
    call = layer(build, node, x, name, node.outputs[0], windows, groups, dtype)
    return replace(call, x_zero=int(zero.reshape(-1)[0]))


def _sum_products(
    build: Builder, node: Node, x: str, w: str, x_zero: str, w_zero: str, kind: str
) -> Expr:
    """The sums as they are written, in ``exact`` (double) or ``long`` arithmetic."""
    windows = spans(node, build.shape(x), build.shape(w)[2:], build.shape(node.outputs[0]))
    groups = int(node.attributes.get("group", 1))
    left, right, _, _ = terms(build, x, w, windows, groups)
    less: list[Expr] = []
    for value, zero in ((left, x_zero), (right, w_zero)):
        shifted: Expr = apply(kind, value)
        if zero:
            other = _channel(build, zero) if zero == w_zero else _number(build, zero)
            shifted = apply("sub", shifted, apply(kind, other))
        less.append(shifted)
    return sum_parts(build, node, x, w, windows, groups, (less[0], less[1]))


def _number(build: Builder, name: str) -> Expr:
    """The only element of a tensor."""
    return build.load(name, name) if build.shape(name) == () else _first(build, name)


def _first(build: Builder, name: str) -> Expr:
    if build.shape(name) != (1,):
        build.refuse(f"{name!r:.200} has {build.shape(name)} elements, expected one")
    return build.along(name, 0)


def _channel(build: Builder, name: str) -> Expr:
    """One number, or one an output channel."""
    return _number(build, name) if build.shape(name) in ((), (1,)) else build.along(name, 1)


STEPS = 255  # between the least and the largest number that 8 bits stand for


@dataclass(slots=True)
class QuantisedDirection(Direction):
    """One direction; ``scales`` are the inputs with those of W and of R."""

    scales: tuple[str, str]
    positions: dict[str, int] = field(default_factory=dict)  # of the node's inputs, by weights

    def weights(self, position: int, first: int, rows: int) -> str:
        name = Direction.weights(self, position, first, rows)
        self.positions[name] = position
        return name

    def product(
        self, x: Matrix, weights: str, shape: Sequence[int], base: str, bias: str = ""
    ) -> str:
        """``x @ weights' + bias``: a layer of whole numbers, scaled; x is in steps of its range."""
        build, rank = self.build, len(shape)
        step, zero = self._range(x.tensor)
        numbers = self._round_to_u8(x.tensor, step, zero)
        sums = Matrix(build.fresh(f"{base}.sums", shape, "int32"), x.rows, rank - 1)
        matrix_product(
            build, self.node, replace(x, tensor=numbers), sums, weights, dtype="u8:s8:s32"
        )
        known = build.constant_value(weights)
        assert known is not None  # the front end takes no other ones
        columns = build.number(f"{weights}.columns", known.sum(axis=1, dtype=np.int32))
        value = formula(
            "real(sums - zero * columns) * (step * scale)", sums=whole(build, sums.tensor),
            zero=_scalar(zero), columns=build.along(columns, rank - 1), step=_scalar(step),
            scale=self._scale(weights, rank - 1),
        )  # fmt: skip
        value = apply("add", value, build.along(bias, rank - 1)) if bias else value
        return build.add(self.node, base, value, shape)

    def _range(self, x: str) -> tuple[str, str]:
        """A step, and the whole number that stands for 0: tensors of one element."""
        build, shape = self.build, self.build.shape(x)
        over = tuple((f"k{at}", size) for at, size in enumerate(shape))
        every = Load(x, tuple(Affine(((name, 1),)) for name, _ in over))
        ends = [
            build.add(self.node, f"{x}.{end}", apply(end, Reduce(end, over, every), 0.0), (1,))
            for end in ("min", "max")
        ]  # fmt: skip
        low, high = (_scalar(end) for end in ends)
        text = "select(high > low, (high - low) / steps, 1)"
        size = formula(text, high=high, low=low, steps=STEPS)
        step = build.add(self.node, f"{x}.step", size, (1,))
        place = formula("rint(-low / step)", low=low, step=_scalar(step))
        return step, build.add(self.node, f"{x}.zero", saturate(place, "uint8"), (1,), "int32")

    def _round_to_u8(self, x: str, step: str, zero: str) -> str:
        build = self.build
        terms = {"x": whole(build, x), "step": _scalar(step), "zero": _scalar(zero)}
        value = saturate(formula("rint(x / step) + real(zero)", **terms), "uint8")
        return build.add(self.node, f"{x}.u8", value, build.shape(x), "uint8")

    def _scale(self, weights: str, column: int) -> Expr:
        """Return the scale of a row of W or R: one for all rows, or its own."""
        name = self.scales[self.positions[weights] - 1]
        by_row = self.build.shape(name)[1] > 1
        return Load(name, (constant(self.number), axis(column) if by_row else constant(0)))


def _scalar(name: str) -> Load:
    return Load(name, (constant(0),))


def quantised_lstm(build: Builder, node: Node) -> None:
    """The first eight inputs are those of an LSTM, W and R constant."""
    plain = replace(node, op="lstm", inputs=node.inputs[:8])
    w_scale, r_scale = node.inputs[8:]
    recurrent(build, plain, partial(QuantisedDirection, scales=(w_scale, r_scale)))


NUDGE: Final = 2.0**-7  # of a step: far more than sums in f32 are off by
ROUNDINGS: Final = (
    *("quantize", "DynamicQuantizeLinear", "quantized_conv", "quantized_matmul"),
    QUANTISED_LSTM,
)


def nudges(graph: Graph) -> Iterator[Nudge]:
    """Yield nudges: all up, all down, some each way; none for a graph that rounds nothing."""
    if not any(node.op in ROUNDINGS for node in graph.nodes):
        return
    for way in (NUDGE, -NUDGE):
        yield lambda shape, way=way: np.full(shape, way)  # type: ignore[misc]
    for seed in range(2):
        random = np.random.default_rng(seed)
        yield lambda shape, random=random: random.choice((NUDGE, -NUDGE), shape)  # type: ignore[misc]


def nudge_inputs(node: Node, known: Mapping[str, Array], nudge: Nudge) -> Mapping[str, Array]:
    """The values that a node reads, with what it rounds a little further up or down."""
    x = known[node.inputs[0]]
    if not x.size or x.dtype.kind != "f":
        return known
    if node.op == "DynamicQuantizeLinear":
        low, high = min(x.min(), 0), max(x.max(), 0)
        inside = (x > low) & (x < high)  # its ends say how long a step is
        moved = x + inside * nudge(x.shape) * (high - low) / 255
    elif node.op == "quantize":
        scale = known[node.inputs[1]]
        if scale.ndim == 1 and scale.size > 1 and not node.attributes.get("block_size"):
            behind = x.ndim - 1 - int(node.attributes.get("axis", 1)) % x.ndim
            scale = scale.reshape(-1, *[1] * behind)
        moved = x + nudge(x.shape) * scale if scale.size == 1 or scale.ndim <= x.ndim else x
    else:
        return known
    return {**known, node.inputs[0]: moved.astype(x.dtype)}


ROWS = (
    Operator("quantize", "QuantizeLinear", quantise, dims="alike"),
    Operator("dequantize", "DequantizeLinear", dequantise, dims="alike"),
    Operator("quantized_conv", "QLinearConv", linear_conv),
    Operator("integer_conv", "ConvInteger", integer_conv),
    Operator(QUANTISED_LSTM, "", quantised_lstm, reference=recurrent_reference, stepwise=True),
)  # fmt: skip
