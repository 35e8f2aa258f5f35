"""Matrix products: layers where the elements are f32, else loops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polysci.graph.gradients import products as gradients
from polysci.graph.graph import Node
from polysci.graph.operators.builder import FLOATS, Builder
from polysci.graph.operators.convolution import Matrix, matrix_product
from polysci.graph.operators.table import Operator
from polysci.loop_ir.expressions import Expr, Load, Reduce, apply, axis, constant
from polysci.polyhedral.affine import Affine
from polysci.program.stages import ViewStage

Axes = tuple[int, ...]


def gemm(build: Builder, node: Node) -> None:
    """``alpha * A' * B' + beta * C``."""
    a, b, y = node.inputs[0], node.inputs[1], node.outputs[0]
    alpha, beta = (float(node.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    across, back = bool(node.attributes.get("transA")), bool(node.attributes.get("transB"))
    build.check_numbers(node, a, b)
    added = node.input(2)
    constant_b = build.constant(b)
    if added and not _spreads(build.shape(added), build.shape(y)):
        build.refuse(f"C {list(build.shape(added))} for y {list(build.shape(y))}")
    if build.dtype(a) != "float32" or not all(build.values[name].size for name in (a, b)):
        _plain_gemm(build, node, alpha, beta)
        return
    bias = _column_bias(build, added, y, beta) if added else ""
    whole = y if bias or not added else build.fresh(f"{y}.product", build.shape(y))
    left = Matrix(a, rows=(1,), columns=0) if across else Matrix(a, rows=(0,), columns=1)
    product = Matrix(whole, rows=(0,), columns=1)
    if constant_b is not None:
        scaled_b = (constant_b if back else constant_b.T) * np.float32(alpha)
        w = build.number(f"{b}.kc", np.ascontiguousarray(scaled_b))
        back, alpha = True, 1.0
    else:
        w = b
    own_bias = bias if whole == y else ""
    matrix_product(build, node, left, product, w, bias=own_bias, across=not back, alpha=alpha)
    if whole != y:
        scaled = apply("mul", build.load(added, y), beta)
        build.define(node, apply("add", build.load(whole, y), scaled))


def _spreads(shape: Axes, to: Axes) -> bool:
    """Whether a tensor broadcasts to a shape and not beyond it."""
    pairs = zip(shape[::-1], to[::-1], strict=False)
    return len(shape) <= len(to) and all(a in (1, b) for a, b in pairs)


def _column_bias(build: Builder, added: str, y: str, beta: float) -> str:
    """A C that is one number a column, as a vector; empty for any other."""
    value, columns = build.constant(added), build.shape(y)[1]
    if value is None and beta == 1 and build.shape(added) == (columns,):
        return added
    if value is None or (value.size > 1 and value.shape[-1:] != (value.size,)):
        return ""
    if value.size not in (1, columns):
        return ""
    wide = np.broadcast_to(value.reshape(-1) * np.float32(beta), (columns,))
    return build.number(f"{added}.bias", np.ascontiguousarray(wide, np.float32))


def _plain_gemm(build: Builder, node: Node, alpha: float, beta: float) -> None:
    """Of other element types: summed as it is written."""
    a, b, y = node.inputs[0], node.inputs[1], node.outputs[0]
    if build.dtype(a) not in FLOATS and (alpha % 1 or beta % 1):
        build.refuse(f"alpha {alpha:g} and beta {beta:g} of whole numbers")
    across, back = bool(node.attributes.get("transA")), bool(node.attributes.get("transB"))
    k = build.shape(a)[0 if across else 1]
    depth = Affine((("k", 1),))
    left = Load(a, (depth, axis(0)) if across else (axis(0), depth))
    right = Load(b, (axis(1), depth) if back else (depth, axis(1)))
    expr: Expr = Reduce("add", (("k", k),), apply("mul", left, right))
    if alpha != 1:
        expr = apply("mul", expr, alpha)
    if node.input(2):
        added: Expr = build.load(node.inputs[2], y)
        expr = apply("add", expr, added if beta == 1 else apply("mul", added, beta))
    build.define(node, expr)


def matmul(build: Builder, node: Node) -> None:
    """NumPy's product: stacks of matrices, of which those of A or B may be one."""
    a, b, y = node.inputs[0], node.inputs[1], node.outputs[0]
    build.check_numbers(node, a, b)
    left, right = list(build.shape(a)), list(build.shape(b))
    if len(left) == 1:
        left = [1, *left]
        a = _viewed(build, node, a, left)
    if len(right) == 1:
        right = [*right, 1]
        b = _viewed(build, node, b, right)
    stack = np.broadcast_shapes(tuple(left[:-2]), tuple(right[:-2]))
    full = [*stack, left[-2], right[-1]]
    out = y if full == list(build.shape(y)) else build.fresh(f"{y}.matrix", full, build.dtype(y))
    multiply(build, node, a, b, out)
    if out != y:
        build.stages.append(ViewStage(str(node), y, out))


def multiply(build: Builder, node: Node, a: str, b: str, out: str) -> None:
    """``out = a @ b`` of tensors of at least two axes, by layers where the elements are f32."""
    if not build.values[out].size or not build.values[a].size or build.dtype(a) != "float32":
        _plain_matmul(build, node, a, b, out)
    elif all(size == 1 for size in build.shape(b)[:-2]):
        _stacked_rows(build, node, a, b, out)
    else:
        _stacks(build, node, a, b, out)


def _viewed(build: Builder, node: Node, name: str, shape: Sequence[int]) -> str:
    value = build.constant(name)
    if value is not None:
        return build.number(f"{name}.matrix", value.reshape(shape))
    made = build.fresh(f"{name}.matrix", shape, build.dtype(name))
    build.stages.append(ViewStage(str(node), made, name))
    return made


def factors(build: Builder, a: str, b: str, out: str) -> tuple[Load, Load]:
    """Elements of A and B whose products, summed over ``k``, are an element of ``out``."""
    rank, depth = len(build.shape(out)), Affine((("k", 1),))

    def element(name: str, row: Affine, column: Affine) -> Load:
        shape = build.shape(name)
        around = [
            axis(rank - len(shape) + at) if size > 1 else constant(0)
            for at, size in enumerate(shape[:-2])
        ]
        return Load(name, (*around, row, column))

    return element(a, axis(rank - 2), depth), element(b, depth, axis(rank - 1))


def _plain_matmul(build: Builder, node: Node, a: str, b: str, out: str) -> None:
    k = build.shape(a)[-1]
    build.define(node, Reduce("add", (("k", k),), apply("mul", *factors(build, a, b, out))), out)


def _stacked_rows(build: Builder, node: Node, a: str, b: str, out: str) -> None:
    """One B for all: the rows of all matrices of A are those of one."""
    rank = len(build.shape(a))
    extra = len(build.shape(out)) - rank  # leading axes of 1 that only B has
    value, (k, n) = build.constant(b), build.shape(b)[-2:]
    w = b
    if value is not None:
        w = build.number(f"{b}.kc", np.ascontiguousarray(value.reshape(k, n).T))
    x = Matrix(a, rows=tuple(range(rank - 1)), columns=rank - 1)
    y = Matrix(out, rows=tuple(range(extra, extra + rank - 1)), columns=extra + rank - 1)
    matrix_product(build, node, x, y, w, across=value is None)


def _stacks(build: Builder, node: Node, a: str, b: str, out: str) -> None:
    """A product for every pair of matrices; B may be the same for several."""
    left, full = build.shape(a), build.shape(out)
    stack = full[:-2]
    x, y = (
        Matrix(name, rows=(rank - 2,), columns=rank - 1)
        for name, rank in ((a, len(left)), (out, len(full)))
    )
    stacked = tuple(np.ndindex(*stack))
    matrix_product(build, node, x, y, b, across=True, stack=stacked)


ROWS = (
    Operator("gemm", "Gemm", gemm, gradient=gradients.gemm, dims="product"),
    Operator("matmul", "MatMul", matmul, gradient=gradients.matmul, dims="product"),
)  # fmt: skip
