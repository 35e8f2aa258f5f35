"""Matrix products and einsum: layers where the elements are f32, else loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Final

import numpy as np

from polysci.graph.builder import FLOATS, Backward
from polysci.graph.formulas import derive
from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.convolution import Matrix, matrix_product
from polysci.graph.operators.table import Operator
from polysci.loop_ir.expressions import Expr, Index, Load, Reduce, apply, axis, constant
from polysci.numerics.affine import Affine
from polysci.numerics.quantization import Scales
from polysci.program.stages import ViewStage

Axes = tuple[int, ...]
Product = Callable[..., None]  # (x, y, weights, **options) of matrix_product


def gemm(build: Builder, node: Node) -> None:
    """``alpha * A' * B' + beta * C``."""
    a, b, y = node.inputs[0], node.inputs[1], node.outputs[0]
    alpha, beta = (float(node.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    across, back = (
        bool(node.attributes.get("transpose_a")),
        bool(node.attributes.get("transpose_b")),
    )
    build.check_numbers(node, a, b)
    added = node.input(2)
    constant_b = build.constant_value(b)
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
        turned = constant_b if back else constant_b.T
        w = build.number(f"{b}.kc", turned if alpha == 1.0 else turned * np.float32(alpha))
        back, alpha = True, 1.0
    else:
        w = b
    own_bias = bias if whole == y else ""
    matrix_product(build, node, left, product, w, bias=own_bias, across=not back, alpha=alpha)
    if whole != y:
        scaled = apply("mul", build.load(added, y), beta)
        build.define(node, apply("add", build.load(whole, y), scaled))


def _spreads(shape: Axes, to: Axes) -> bool:
    """Return whether a tensor broadcasts to a shape and not beyond it."""
    pairs = zip(shape[::-1], to[::-1], strict=False)
    return len(shape) <= len(to) and all(a in (1, b) for a, b in pairs)


def _column_bias(build: Builder, added: str, y: str, beta: float) -> str:
    """A C that is one number a column, as a vector; empty for any other."""
    value, columns = build.constant_value(added), build.shape(y)[1]
    if value is None and beta == 1 and build.shape(added) == (columns,):
        return added
    if value is None or (value.size > 1 and value.shape[-1:] != (value.size,)):
        return ""
    if value.size not in (1, columns):
        return ""
    wide = np.broadcast_to(value.reshape(-1) * np.float32(beta), (columns,))
    return build.number(f"{added}.bias", np.ascontiguousarray(wide, np.float32))


def _plain_gemm(build: Builder, node: Node, alpha: float, beta: float) -> None:
    """Sum products of other element types as they are written."""
    a, b, y = node.inputs[0], node.inputs[1], node.outputs[0]
    if build.dtype(a) not in FLOATS and (alpha % 1 or beta % 1):
        build.refuse(f"alpha {alpha:g} and beta {beta:g} of whole numbers")
    across, back = (
        bool(node.attributes.get("transpose_a")),
        bool(node.attributes.get("transpose_b")),
    )
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
        a = _view_matrix(build, node, a, left)
    if len(right) == 1:
        right = [*right, 1]
        b = _view_matrix(build, node, b, right)
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
    else:
        multiply_layers(build, node, a, b, out)


def multiply_layers(
    build: Builder, node: Node, a: str, b: str, out: str, *, dtype: str = "f32", x_zero: int = 0,
    scales: Scales | None = None,
) -> None:  # fmt: skip
    """``out = a @ b`` of tensors of at least two axes, none of which is empty, by layers."""
    product = partial(matrix_product, build, node, dtype=dtype, x_zero=x_zero, scales=scales)
    if all(size == 1 for size in build.shape(b)[:-2]):
        _stacked_rows(build, a, b, out, product)
    else:
        _stacks(build, a, b, out, product)


def _view_matrix(build: Builder, node: Node, name: str, shape: Sequence[int]) -> str:
    value = build.constant_value(name)
    if value is not None:
        return build.number(f"{name}.matrix", value.reshape(shape))
    matrix = build.fresh(f"{name}.matrix", shape, build.dtype(name))
    build.stages.append(ViewStage(str(node), matrix, name))
    return matrix


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


def _stacked_rows(build: Builder, a: str, b: str, out: str, product: Product) -> None:
    """One B for all: the rows of all matrices of A are those of one."""
    rank = len(build.shape(a))
    extra = len(build.shape(out)) - rank  # leading axes of 1 that only B has
    value, (k, n) = build.constant_value(b), build.shape(b)[-2:]
    w = b
    if value is not None:
        w = build.number(f"{b}.kc", value.reshape(k, n).T)
    x = Matrix(a, rows=tuple(range(rank - 1)), columns=rank - 1)
    y = Matrix(out, rows=tuple(range(extra, extra + rank - 1)), columns=extra + rank - 1)
    product(x, y, w, across=value is None)


def _stacks(build: Builder, a: str, b: str, out: str, product: Product) -> None:
    """A product for every pair of matrices; B may be the same for several."""
    left, full = build.shape(a), build.shape(out)
    stack = full[:-2]
    x, y = (
        Matrix(name, rows=(rank - 2,), columns=rank - 1)
        for name, rank in ((a, len(left)), (out, len(full)))
    )
    stacked = tuple(np.ndindex(*stack))
    product(x, y, b, across=True, stack=stacked)


Labels = tuple[str, ...]
# Element type of two factors -> the precision of their product as a layer; results are f32.
_PRECISIONS: Final = {"float32": "f32", "bf16": "bf16:bf16:f32"}


@dataclass(frozen=True, slots=True)
class Labelled:
    """A tensor with a label for each axis, which may repeat."""

    tensor: str
    labels: Labels


@dataclass(slots=True)
class Equation:
    """The labels of all tensors of an Einsum, and their extents."""

    build: Builder
    node: Node
    terms: list[Labelled]
    result: Labels
    sizes: dict[str, int]

    def fresh(self, labels: Labels) -> str:
        """A tensor for a part of the result."""
        return self.part(labels, self.build.dtype(self.node.outputs[0]))

    def part(self, labels: Labels, dtype: str) -> str:
        """A tensor that this operator alone reads."""
        shape = [self.sizes[label] for label in labels]
        return self.build.fresh(f"{self.node.outputs[0]}.part", shape, dtype)

    def target(self, labels: Labels, output: str) -> str:
        """``output`` if there is one with these labels, else a part of the result."""
        return output if output and labels == self.result else self.fresh(labels)

    def element(self, term: Labelled, places: dict[str, Affine]) -> Load:
        """An element of a tensor; an axis of one element belongs to any place."""
        shape = self.build.shape(term.tensor)
        index: list[Index] = [
            places[label] if size > 1 else constant(0)
            for label, size in zip(term.labels, shape, strict=True)
        ]
        return Load(term.tensor, tuple(index))

    def sum_products(self, terms: Sequence[Labelled], labels: Labels, output: str) -> Labelled:
        """``output[labels]``: products of elements, summed over all other labels."""
        places = {label: axis(at) for at, label in enumerate(labels)}
        known = dict.fromkeys(label for term in terms for label in term.labels)
        summed = [label for label in known if label not in places]
        names = {label: f"s{at}" for at, label in enumerate(summed)}
        places |= {label: Affine(((name, 1),)) for label, name in names.items()}
        expr: Expr = self.element(terms[0], places)
        for term in terms[1:]:
            expr = apply("mul", expr, self.element(term, places))
        if summed:
            over = tuple((names[label], self.sizes[label]) for label in summed)
            expr = Reduce("add", over, expr)
        return Labelled(self.build.define(self.node, expr, output), labels)

    def simplify(self, term: Labelled, needed: set[str]) -> Labelled:
        """Every label once, in its full extent, and only those that others need."""
        labels = tuple(dict.fromkeys(label for label in term.labels if label in needed))
        shape = tuple(self.sizes[label] for label in labels)
        if labels == term.labels and self.build.shape(term.tensor) == shape:
            return term
        return self.sum_products([term], labels, self.fresh(labels))

    def arrange(self, term: Labelled, groups: Sequence[Labels]) -> str:
        """A tensor with an axis for each group of its labels."""
        build, order = self.build, [label for group in groups for label in group]
        places = [term.labels.index(label) for label in order]
        shape = [prod(self.sizes[label] for label in group) for group in groups]
        value = build.constant_value(term.tensor)
        if value is not None:
            moved = np.ascontiguousarray(value.transpose(places)).reshape(shape)
            return build.number(f"{term.tensor}.moved", moved)
        name, at = term.tensor, {label: axis(n) for n, label in enumerate(order)}
        if places != sorted(places):
            turned = self.part(tuple(order), build.dtype(name))
            index = tuple(at[label] for label in term.labels)
            build.stages.append(ViewStage(str(self.node), turned, name, index))
            name = turned
        if tuple(shape) != build.shape(name):
            merged = build.fresh(f"{name}.matrix", shape, build.dtype(name))
            build.stages.append(ViewStage(str(self.node), merged, name))
            name = merged
        return name

    def multiply(self, left: Labelled, right: Labelled, needed: set[str], output: str) -> Labelled:
        """The product of two tensors, summed over labels that nothing else needs."""
        left = self.simplify(left, needed | {*right.labels})
        right = self.simplify(right, needed | {*left.labels})
        both = [label for label in left.labels if label in right.labels]
        stack = tuple(label for label in both if label in needed)
        inner = tuple(label for label in both if label not in needed)
        rows, columns = (
            tuple(label for label in term.labels if label not in both) for term in (left, right)
        )
        labels = (*stack, *rows, *columns)
        types = {self.build.dtype(term.tensor) for term in (left, right)}
        known = len(types) == 1 and types <= {*_PRECISIONS}
        if not inner or not known or not prod(self.sizes[label] for label in (*labels, *inner)):
            return self.sum_products([left, right], labels, self.target(labels, output))
        return self.product(left, right, (stack, rows, inner, columns), output)

    def product(
        self, left: Labelled, right: Labelled, parts: tuple[Labels, Labels, Labels, Labels],
        output: str,
    ) -> Labelled:  # fmt: skip
        """A matrix product for each place of the labels of a stack."""
        stack, rows, inner, columns = parts
        batch, build = [(label,) for label in stack], self.build
        n = prod(self.sizes[label] for label in columns)
        known = build.constant_value(right.tensor) is not None
        across = not (known or not right.labels or right.labels[-1] in inner)
        a = self.arrange(left, [*batch, rows, inner])
        b = self.arrange(right, [*batch, inner, columns] if across else [*batch, columns, inner])
        labels, rank = (*stack, *rows, *columns), len(stack)
        plain = len(rows) == len(columns) == 1
        shape = [*build.shape(a)[: rank + 1], n]
        base = f"{self.node.outputs[0]}.product"
        kind = build.dtype(self.node.outputs[0])
        product = self.target(labels, output) if plain else build.fresh(base, shape, kind)
        places = tuple(np.ndindex(*shape[:rank])) if stack else ()
        matrix_product(
            build, self.node, Matrix(a, (rank,), rank + 1), Matrix(product, (rank,), rank + 1), b,
            across=across, stack=places, dtype=_PRECISIONS[build.dtype(a)],
        )  # fmt: skip
        if plain:
            return Labelled(product, labels)
        split = self.target(labels, output)
        build.stages.append(ViewStage(str(self.node), split, product))
        return Labelled(split, labels)


def _terms(build: Builder, node: Node) -> tuple[list[Labels], Labels]:
    """The labels of all inputs and of the result; axes of an ellipsis are numbered."""
    text = str(node.attributes["equation"]).replace(" ", "")
    left, arrow, right = text.partition("->")
    subscripts = left.split(",")
    if len(subscripts) != len(node.inputs):
        build.refuse(f"equation {text!r} of {len(node.inputs)} inputs")
    ranks = [len(build.shape(name)) for name in node.inputs]
    extra = [
        rank - len(word.replace("...", "")) for rank, word in zip(ranks, subscripts, strict=True)
    ]
    most = max((count for count, word in zip(extra, subscripts, strict=True) if "..." in word),
               default=0)  # fmt: skip

    def labels(word: str, count: int) -> Labels:
        before, dots, after = word.partition("...")
        numbered = [str(number) for number in range(most - count, most)] if dots else []
        if not (before + after).isalpha() and before + after:
            build.refuse(f"equation {text!r}")
        return (*before, *numbered, *after)

    terms = [labels(word, count) for word, count in zip(subscripts, extra, strict=True)]
    if any(len(term) != rank for term, rank in zip(terms, ranks, strict=True)):
        build.refuse(f"equation {text!r} of inputs of {ranks} axes")
    if arrow:
        return terms, labels(right, most)
    every = [label for term in terms for label in term]
    once = sorted(label for label in {*every} if every.count(label) == 1 and label.isalpha())
    return terms, (*map(str, range(most)), *once)


def einsum(build: Builder, node: Node) -> None:
    """The sum of products that the equation says, tensors joined from left to right."""
    if any(build.dtype(name) != "bf16" for name in node.inputs):
        build.check_numbers(node, *node.inputs)
    terms, result = _terms(build, node)
    sizes = dict[str, int]()
    for name, labels in zip(node.inputs, terms, strict=True):
        for label, size in zip(labels, build.shape(name), strict=True):
            if sizes.get(label, 1) not in (1, size) and size != 1:
                build.refuse(f"label {label} of {sizes[label]} and of {size} elements")
            sizes[label] = size if sizes.get(label, 1) == 1 else sizes[label]
    if len({*result}) < len(result) or not {*result} <= {*sizes}:
        build.refuse(f"equation {node.attributes['equation']!r}")
    pairs = zip(node.inputs, terms, strict=True)
    equation = Equation(build, node, [Labelled(*pair) for pair in pairs], result, sizes)
    y, (total, *rest) = node.outputs[0], equation.terms
    if not rest:
        equation.sum_products([total], result, y)
        return
    for at, term in enumerate(rest):
        needed = {*result, *(label for later in rest[at + 1 :] for label in later.labels)}
        total = equation.multiply(total, term, needed, y if at == len(rest) - 1 else "")
    if total.tensor != y:
        index = tuple(axis(result.index(label)) for label in total.labels)
        build.stages.append(ViewStage(str(node), y, total.tensor, index))


def multiply_gradient(
    back: Backward, a: str, b: str, *, turn_a: bool = False, turn_b: bool = False,
    alpha: float = 1.0,
) -> str:  # fmt: skip
    """``alpha * A' * B'`` of two matrices."""
    rows, columns = back.shape(a)[turn_a], back.shape(b)[1 - turn_b]
    attributes: dict[str, float] = {"transpose_a": int(turn_a), "transpose_b": int(turn_b)}
    if alpha != 1:
        attributes["alpha"] = alpha
    return back.add("gemm", (a, b), (rows, columns), back.dtype(a), **attributes)


def gemm_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """``alpha * A' * B' + beta * C``."""
    a, b, dy = node.inputs[0], node.inputs[1], dys[0]
    alpha, beta = (float(node.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    across, behind = (
        bool(node.attributes.get("transpose_a")),
        bool(node.attributes.get("transpose_b")),
    )
    da = db = dc = ""
    if back.wants(a):
        pair, turns = ((b, dy), (behind, True)) if across else ((dy, b), (False, not behind))
        da = multiply_gradient(back, *pair, turn_a=turns[0], turn_b=turns[1], alpha=alpha)
    if back.wants(b):
        pair, turns = ((dy, a), (True, across)) if behind else ((a, dy), (not across, False))
        db = multiply_gradient(back, *pair, turn_a=turns[0], turn_b=turns[1], alpha=alpha)
    if node.input(2) and back.wants(node.inputs[2]):
        dc = back.unbroadcast(dy, back.shape(node.inputs[2]))
        dc = dc if beta == 1 else derive(back, "dc * beta", dc=dc, beta=beta)
    return [da, db, dc][: len(node.inputs)]


def matmul_gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
    """NumPy's product: vectors as matrices of one row or column, stacks that broadcast."""
    a, b = node.inputs
    left, right = back.shape(a), back.shape(b)
    first = back.reshape(a, (1, *left) if len(left) == 1 else left)
    second = back.reshape(b, (*right, 1) if len(right) == 1 else right)
    rows, inner = back.shape(first)[-2:]
    columns = back.shape(second)[-1]
    around = back.shape(node.outputs[0])[: max(len(left), len(right), 2) - 2]
    dy = back.reshape(dys[0], (*around, rows, columns))
    if prod(back.shape(second)[:-2]) == 1:
        flat = back.reshape(dy, (prod(around) * rows, columns))
        matrix = back.reshape(second, (inner, columns))
        da = multiply_gradient(back, flat, matrix, turn_b=True) if back.wants(a) else ""
        tall = back.reshape(first, (prod(around) * rows, inner))
        db = multiply_gradient(back, tall, flat, turn_a=True) if back.wants(b) else ""
        return [back.reshape(da, left) if da else "", back.reshape(db, right) if db else ""]
    da = db = ""
    if back.wants(a):
        wide = _stack(back, dy, _transpose_matrices(back, second), (*around, rows, inner))
        da = back.reshape(back.unbroadcast(wide, back.shape(first)), left)
    if back.wants(b):
        wide = _stack(back, _transpose_matrices(back, first), dy, (*around, inner, columns))
        db = back.reshape(back.unbroadcast(wide, back.shape(second)), right)
    return [da, db]


def _stack(back: Backward, a: str, b: str, shape: Sequence[int]) -> str:
    return back.add("matmul", (a, b), shape, back.dtype(a))


def _transpose_matrices(back: Backward, x: str) -> str:
    """Every matrix of a stack transposed."""
    rank = len(back.shape(x))
    return back.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


ROWS = (
    Operator("gemm", "Gemm", gemm, gradient=gemm_gradient, dims="product"),
    Operator("matmul", "MatMul", matmul, gradient=matmul_gradient, dims="product"),
    Operator("einsum", "Einsum", einsum),
)  # fmt: skip
