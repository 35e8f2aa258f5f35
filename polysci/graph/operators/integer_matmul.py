"""Matrix products of 8-bit numbers: layers, whose sums are corrected for zeros that they lack."""

from __future__ import annotations

import numpy as np

from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder, formula, whole
from polysci.graph.operators.convolution import Matrix, matrix_product
from polysci.graph.operators.products import factors, multiply_layers
from polysci.graph.operators.quantised import SHORT, define_rounded, layer_scales, saturate
from polysci.graph.operators.table import Operator
from polysci.loop_ir.expressions import Expr, Load, Number, Reduce, apply, axis, constant
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import Array
from polysci.numerics.quantization import Scales

Factor = tuple[str, str]  # 8-bit numbers, and their zero: of all, or one a row of A or column of B
LIMITS = np.iinfo(np.int8)


def integer_matmul(build: Builder, node: Node) -> None:
    """MatMulInteger: sums of whole numbers."""
    a, b, y = node.inputs[0], node.inputs[1], node.outputs[0]
    _check_matrices(build, a, b)
    if not _layer(build, node, (a, node.input(2)), (b, node.input(3)), None, y):
        build.define(node, _sums(build, node, (a, node.input(2)), (b, node.input(3))))


def linear_matmul(build: Builder, node: Node) -> None:
    """QLinearMatMul: the same, scaled and rounded to 8 bits; a ninth input is a bias."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs[:8]
    y = node.outputs[0]
    _check_matrices(build, a, b, y)
    scales = layer_scales(build, (a_scale, b_scale, y_scale, y_zero))
    if scales and _layer(build, node, (a, a_zero), (b, b_zero), scales, y):
        return
    for name in (y_scale, y_zero):
        if build.values[name].size != 1:
            build.refuse(f"{name!r:.200} has {build.values[name].size} elements, expected one")
    sums = _sums(build, node, (a, a_zero), (b, b_zero))
    if scales and not node.input(8):  # as layers round
        factor = build.load(build.number(f"{y}.factor", scales.values), y)
        value = formula("rint(real(sums) * factor) + zero", sums=sums, factor=factor,
                        zero=scales.y_zero)  # fmt: skip
        build.define(node, saturate(value, build.dtype(y)))
        return
    total = apply("exact", sums)
    bias = build.load(node.input(8), y) if node.input(8) else None
    define_rounded(
        build, node, total, bias, x=_parameter(build, node, a_scale, row=True),
        w=_parameter(build, node, b_scale), y=build.load(y_scale, y), zero=build.load(y_zero, y),
    )  # fmt: skip


def _check_matrices(build: Builder, *names: str) -> None:
    for name in names:
        if build.dtype(name) not in SHORT:
            build.refuse(f"elements of {build.dtype(name)}")
        if len(build.shape(name)) < 2:
            build.refuse(f"{list(build.shape(name))} is no matrix")


def _layer(
    build: Builder, node: Node, a: Factor, b: Factor, scales: Scales | None, y: str
) -> bool:  # fmt: skip
    """Add a layer that does all, where A has one known zero, and 8 bits hold B less its zero.

    A known B is one matrix; one that is computed is signed, and has no zero.
    """
    value, of_a, of_b = build.constant_value(b[0]), _known(build, a[1]), _known(build, b[1])
    if of_a is None or of_a.size != 1 or of_b is None or not _is_full(build, a[0], y):
        return False
    types = f"{SHORT[build.dtype(a[0])]}:s8:{SHORT[build.dtype(y)] if scales else 's32'}"
    if value is None:
        if build.dtype(b[0]) != "int8" or of_b.any() or node.input(8):
            return False
        multiply_layers(
            build, node, a[0], b[0], y, dtype=types, x_zero=int(of_a.item()), scales=scales
        )  # fmt: skip
        return True
    moved = value.astype(np.int64) - of_b.astype(np.int64)
    if value.ndim != 2 or moved.shape != value.shape or not _fits(moved):
        return False
    name, rank = build.number(f"{b[0]}.s8", _signed(moved.T)), len(build.shape(a[0]))
    left, right = (
        Matrix(tensor, rows=tuple(range(rank - 1)), columns=rank - 1) for tensor in (a[0], y)
    )
    matrix_product(
        build, node, left, right, name, dtype=types, x_zero=int(of_a.item()), scales=scales,
        bias=node.input(8),
    )  # fmt: skip
    return True


def _known(build: Builder, zero: str) -> Array | None:
    """Return a zero that is known; one that is left out is 0."""
    return build.constant_value(zero) if zero else np.zeros((), np.int64)


def _is_full(build: Builder, *names: str) -> bool:
    return all(build.values[name].size for name in names)


def _fits(numbers: Array) -> bool:
    return bool(LIMITS.min <= numbers.min() and numbers.max() <= LIMITS.max)


def _signed(numbers: Array) -> Array:
    return np.ascontiguousarray(numbers.astype(np.int8))


def _sums(build: Builder, node: Node, a: Factor, b: Factor) -> Expr:
    """An element of ``(A - zeros) @ (B - zeros)``.

    It is that of a product by B as signed numbers, less zeros of B times the sums of rows of A,
    less zeros of A, unless the layer knows them, times the sums of columns of B.
    """
    y, k = node.outputs[0], build.shape(a[0])[-1]
    if not _is_full(build, a[0], y):
        return _textbook(build, node, a, b)
    b, less = _sign(build, node, b)
    known = _known(build, a[1])
    inside = known is not None and known.size == 1
    sums = build.fresh(f"{y}.sums", build.shape(y), "int32")
    multiply_layers(
        build, node, a[0], b[0], sums, dtype=f"{SHORT[build.dtype(a[0])]}:s8:s32",
        x_zero=int(known.item()) if inside and known is not None else 0,
    )  # fmt: skip
    total: Expr = whole(build, sums)
    of_a: Expr = _parameter(build, node, a[1], row=True) if a[1] else Number(0)
    of_b: Expr = _parameter(build, node, b[1]) if b[1] else Number(0)
    if less:
        of_b = apply("sub", of_b, less)
    if of_b != Number(0):
        rows = _total(build, node, a[0], -1)
        total = formula("total - (rows - k * a) * b", total=total, rows=rows, k=k, a=of_a, b=of_b)
    if not inside:
        columns = _total(build, node, b[0], -2)
        total = formula("total - columns * a", total=total, columns=columns, a=of_a)
    return total


def _sign(build: Builder, node: Node, b: Factor) -> tuple[Factor, int]:
    """Return B as signed numbers and what its zeros are less than; a known B may lose its zeros."""
    value, zero = build.constant_value(b[0]), _known(build, b[1])
    if value is not None and zero is not None:
        moved = value.astype(np.int64) - zero.astype(np.int64)
        if moved.shape == value.shape and _fits(moved):
            return (build.number(f"{b[0]}.s8", _signed(moved)), ""), 0
    if build.dtype(b[0]) == "int8":
        return b, 0
    middle = -LIMITS.min
    if value is not None:
        return (build.number(f"{b[0]}.s8", _signed(value.astype(np.int64) - middle)), b[1]), middle
    numbers = saturate(formula("real(b) - middle", b=whole(build, b[0]), middle=middle), "int8")
    return (build.add(node, f"{b[0]}.s8", numbers, build.shape(b[0]), "int8"), b[1]), middle


def _total(build: Builder, node: Node, name: str, along: int) -> Expr:
    """The sum along an axis of a factor, for an element of the result."""
    shape = list(build.shape(name))
    rank, at = len(shape), along % len(shape)
    index = [Affine((("k", 1),)) if own == at else axis(own) for own in range(rank)]
    value = Reduce("add", (("k", shape[at]),), Load(name, tuple(index)))
    shape[at] = 1
    total = build.add(node, f"{name}.total", value, shape, "int32")
    return build.load(total, node.outputs[0])


def _textbook(build: Builder, node: Node, a: Factor, b: Factor) -> Expr:
    """The sums as they are written, for an element of the output."""
    left, right = factors(build, a[0], b[0], node.outputs[0])
    less = [
        apply("sub", part, _parameter(build, node, zero, row=row)) if zero else part
        for part, zero, row in ((left, a[1], True), (right, b[1], False))
    ]
    return Reduce("add", (("k", build.shape(a[0])[-1]),), apply("mul", *less))


def _parameter(build: Builder, node: Node, name: str, *, row: bool = False) -> Expr:
    """A scale or zero point: of the tensor, one a row of A or a column of B, or of a stack too."""
    y, shape = node.outputs[0], build.shape(name)
    rank = len(build.shape(y))
    if build.values[name].size == 1 or not row or len(shape) != 1:
        return build.load(name, y)
    return Load(name, (axis(rank - 2) if shape[0] > 1 else constant(0),))


ROWS = (
    Operator("integer_matmul", "MatMulInteger", integer_matmul),
    Operator("quantized_matmul", "QLinearMatMul", linear_matmul),
)
