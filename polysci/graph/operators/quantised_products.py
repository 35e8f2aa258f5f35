"""Products of matrices of 8-bit numbers that stand for real ones."""

from __future__ import annotations

import numpy as np

from polysci.errors import SpecError
from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.convolution import Matrix, matrix_product
from polysci.graph.operators.products import factors
from polysci.graph.operators.quantised import saturate
from polysci.graph.operators.table import Operator
from polysci.loop_ir.expressions import Expr, Load, Reduce, apply, axis, constant
from polysci.numerics.arrays import Array
from polysci.numerics.quantization import Scales

_NAMES = {"uint8": "u8", "int8": "s8"}


def integer_matmul(build: Builder, node: Node) -> None:
    """MatMulInteger: sums of whole numbers."""
    a, b, y = node.inputs[0], node.inputs[1], node.outputs[0]
    _check(build, a, b)
    if not _layer(build, node, (a, node.input(2)), (b, node.input(3)), None, y):
        total = _sums(build, node, (a, node.input(2)), (b, node.input(3)))
        build.define(node, total)


def linear_matmul(build: Builder, node: Node) -> None:
    """QLinearMatMul: the same, scaled and rounded to 8 bits; a ninth input is a bias."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs[:8]
    y = node.outputs[0]
    _check(build, a, b, y)
    scales = _scales(build, node, (a_scale, b_scale, y_scale, y_zero))
    if scales and _layer(build, node, (a, a_zero), (b, b_zero), scales, y):
        return
    for name in (y_scale, y_zero):
        if build.values[name].size != 1:
            build.refuse(f"{name!r:.200} has {build.values[name].size} elements, expected one")
    scale = apply(
        "mul", _parameter(build, node, a_scale, row=True), _parameter(build, node, b_scale)
    )
    ratio = apply("div", apply("exact", scale), apply("exact", build.load(y_scale, y)))
    total = apply("exact", _sums(build, node, (a, a_zero), (b, b_zero)))
    if node.input(8):
        total = apply("add", total, apply("exact", build.load(node.input(8), y)))
    rounded = apply("rint", apply("mul", total, ratio))
    value = apply("add", rounded, apply("exact", build.load(y_zero, y)))
    build.define(node, saturate(value, build.dtype(y)))


def _check(build: Builder, *names: str) -> None:
    for name in names:
        if build.dtype(name) not in _NAMES:
            build.refuse(f"elements of {build.dtype(name)}")
        if len(build.shape(name)) < 2:
            build.refuse(f"{list(build.shape(name))} is no matrix")


def _scales(build: Builder, node: Node, names: tuple[str, ...]) -> Scales | None:
    """As a layer takes them, where they are known and one for all rows."""
    known = [build.constant(name) for name in names]
    a, b, y, zero = known
    if a is None or b is None or y is None or zero is None or {a.size, y.size, zero.size} != {1}:
        return None
    factor = (a.reshape(-1).astype(np.float64) * b.reshape(-1) / y.reshape(-1)).reshape(-1)
    try:
        return Scales(factor if factor.size > 1 else float(factor[0]), int(zero.reshape(-1)[0]))
    except (ValueError, SpecError) as error:
        build.refuse(str(error))


def _layer(
    build: Builder, node: Node, a: tuple[str, str], b: tuple[str, str], scales: Scales | None,
    y: str,
) -> bool:  # fmt: skip
    """Add a layer, where B is known, one matrix, and 8 bits hold it less its zero points."""
    value, of_a = build.constant(b[0]), build.constant(a[1]) if a[1] else np.zeros(1, np.int64)
    of_b = build.constant(b[1]) if b[1] else np.zeros(1, np.int64)
    rank = len(build.shape(a[0]))
    if value is None or of_a is None or of_b is None or value.ndim != 2 or rank < 2:
        return False
    moved: Array = value.astype(np.int64) - of_b.astype(np.int64).reshape(-1)
    fits = moved.size and moved.min() >= -128 and moved.max() <= 127
    if not fits or of_a.size != 1 or not build.values[a[0]].size:
        return False
    name = build.number(f"{b[0]}.s8", np.ascontiguousarray(moved.T.astype(np.int8)))
    left, right = (
        Matrix(tensor, rows=tuple(range(rank - 1)), columns=rank - 1) for tensor in (a[0], y)
    )
    kind = _NAMES[build.dtype(y)] if scales else "s32"
    matrix_product(
        build, node, left, right, name, dtype=f"{_NAMES[build.dtype(a[0])]}:s8:{kind}",
        x_zero=int(of_a.reshape(-1)[0]), scales=scales, bias=node.input(8),
    )  # fmt: skip
    return True


def _sums(build: Builder, node: Node, a: tuple[str, str], b: tuple[str, str]) -> Expr:
    """The sums as they are written, for an element of the output."""
    left, right = factors(build, a[0], b[0], node.outputs[0])
    less = [
        apply("sub", part, _parameter(build, node, zero, row=row)) if zero else part
        for part, zero, row in ((left, a[1], True), (right, b[1], False))
    ]
    k = build.shape(a[0])[-1]
    return Reduce("add", (("k", k),), apply("mul", *less))


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
)  # fmt: skip
