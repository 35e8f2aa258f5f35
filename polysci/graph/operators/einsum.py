"""Einsum: sums of products over labelled axes; two tensors at a time are a matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.convolution import Matrix, matrix_product
from polysci.graph.operators.table import Operator
from polysci.loop_ir.expressions import Expr, Index, Load, Reduce, apply, axis, constant
from polysci.polyhedral.affine import Affine
from polysci.program.stages import ViewStage

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
        value = build.constant(term.tensor)
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
        known = build.constant(right.tensor) is not None
        across = not (known or not right.labels or right.labels[-1] in inner)
        a = self.arrange(left, [*batch, rows, inner])
        b = self.arrange(right, [*batch, inner, columns] if across else [*batch, columns, inner])
        labels, rank = (*stack, *rows, *columns), len(stack)
        plain = len(rows) == len(columns) == 1
        shape = [*build.shape(a)[: rank + 1], n]
        base = f"{self.node.outputs[0]}.product"
        kind = build.dtype(self.node.outputs[0])
        made = self.target(labels, output) if plain else build.fresh(base, shape, kind)
        places = tuple(np.ndindex(*shape[:rank])) if stack else ()
        matrix_product(
            build, self.node, Matrix(a, (rank,), rank + 1), Matrix(made, (rank,), rank + 1), b,
            across=across, stack=places, dtype=_PRECISIONS[build.dtype(a)],
        )  # fmt: skip
        if plain:
            return Labelled(made, labels)
        split = self.target(labels, output)
        build.stages.append(ViewStage(str(self.node), split, made))
        return Labelled(split, labels)


def _terms(build: Builder, node: Node) -> tuple[list[Labels], Labels]:
    """The labels of all inputs and of the result; axes of an ellipsis are numbered."""
    text = str(node.attributes["equation"]).replace(" ", "")
    left, arrow, right = text.partition("->")
    words = left.split(",")
    if len(words) != len(node.inputs):
        build.refuse(f"equation {text!r} of {len(node.inputs)} inputs")
    ranks = [len(build.shape(name)) for name in node.inputs]
    extra = [rank - len(word.replace("...", "")) for rank, word in zip(ranks, words, strict=True)]
    most = max((count for count, word in zip(extra, words, strict=True) if "..." in word),
               default=0)  # fmt: skip

    def labels(word: str, count: int) -> Labels:
        before, dots, after = word.partition("...")
        numbered = [str(number) for number in range(most - count, most)] if dots else []
        if not (before + after).isalpha() and before + after:
            build.refuse(f"equation {text!r}")
        return (*before, *numbered, *after)

    terms = [labels(word, count) for word, count in zip(words, extra, strict=True)]
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


ROWS = (
    Operator("einsum", "Einsum", einsum),
)  # fmt: skip
