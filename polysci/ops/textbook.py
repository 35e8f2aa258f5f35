"""The textbook nest of an operator: loops, perhaps a guard, and one sum of products, as loop IR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polysci.loop_ir.index import Comparison, Index, Linear, Subscripts, Variable, every, linear
from polysci.loop_ir.nodes import (
    Arithmetic,
    Block,
    Buffer,
    Element,
    For,
    If,
    LoopFunction,
    LoopStatement,
    Store,
    loop,
)
from polysci.numerics.affine import Affine

if TYPE_CHECKING:
    from polysci.polyhedral.contraction import Contraction
    from polysci.polyhedral.scop import Scop


@dataclass(frozen=True, slots=True)
class Reference:
    """An element of an array: the array's name and extents, and a subscript for each axis."""

    array: str
    shape: tuple[int, ...]
    index: tuple[Affine, ...]

    @property
    def at(self) -> Subscripts:
        """Return the element's place."""
        return Subscripts(tuple(map(_index, self.index)), self.shape)


def textbook(
    name: str, loops: Mapping[str, int], references: Sequence[Reference], guarded: str = ""
) -> LoopFunction:
    """Return the function that adds to the first reference the product of the two others.

    Its parameters are their arrays, of which the caller zeroes the first one; ``loops`` are extents
    by iterator, outermost first. A guard keeps subscripts of the array ``guarded`` in bounds, where
    some iteration would leave them.
    """
    out, *factors = references
    left, right = (Element(part.array, part.at) for part in factors)
    total = Arithmetic("+", Element(out.array, out.at), Arithmetic("*", left, right))
    node: LoopStatement = Store(out.array, out.at, total)
    bounds = [
        bound for part in references if part.array == guarded for bound in _bounds(part, loops)
    ]
    if bounds:
        node = If(every(bounds), Block((node,)))
    for iterator, extent in reversed([*loops.items()]):
        node = loop(iterator, extent, node)
    parameters = tuple(
        Buffer(part.array, "float32", const=part is not out, shape=part.shape)
        for part in references
    )
    return LoopFunction(name, parameters, Block((node,)), attributes=())


def nest_of(contraction: Contraction) -> LoopFunction:
    """Return the nest of a contraction, guarded where subscripts of its first factor leave it."""
    operands = (contraction.out, contraction.a, contraction.b)
    references = [Reference(part.array, part.shape, part.index) for part in operands]
    return textbook("nest", contraction.extents, references, contraction.a.array)


def scop_of(nest: LoopFunction) -> Scop:
    """Return the Scop of a textbook nest, whose loop IR prints as isl reads it."""
    from polysci.polyhedral.scop import Array, sum_of_products  # islpy takes 200 ms

    bounds, guards, node = dict[str, str](), list[str](), nest.body.body[0]
    while not isinstance(node, Store):
        assert isinstance(node, For | If), f"{type(node).__name__} in a textbook nest"
        if isinstance(node, If):
            guards.append(str(node.condition))
            (node,) = node.then.body
        else:
            bounds[node.variable] = f"{node.start} <= {node.variable} < {node.end}"
            (node,) = node.body.body
    match node.value:
        case Arithmetic(
            "+", Element() as out, Arithmetic("*", Element() as left, Element() as right)
        ):
            elements = [(str(part.buffer), str(part.at)) for part in (out, left, right)]
        case other:
            raise TypeError(f"{other}: a textbook nest adds a product of two elements to a third")
    arrays = [
        Array(buffer.name, buffer.shape) for buffer in nest.parameters if isinstance(buffer, Buffer)
    ]
    return sum_of_products("<nest>", arrays, bounds, guards, elements, str(node))


def _bounds(reference: Reference, extents: Mapping[str, int]) -> Iterator[Comparison]:
    """Yield the conditions that some iteration of the box does not fulfil."""
    for index, extent in zip(reference.index, reference.shape, strict=True):
        low, high = index.reach(extents)
        if low < 0:
            yield Comparison(">=", _index(index), Linear())
        if high >= extent:
            yield Comparison("<", _index(index), Linear((), extent))


def iterator(name: str) -> Affine:
    """Return an iterator as a subscript."""
    return Affine(((name, 1),))


def _index(form: Affine) -> Index:
    """Return an affine form in iterators as an index."""
    return linear(dict(form.terms), {name: Variable(name) for name, _ in form.terms}, form.const)
