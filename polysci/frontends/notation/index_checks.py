"""Computed subscripts outside their axes: those that no data decides, and counts of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Final, NamedTuple

import numpy as np

from polysci.frontends.notation.elaborate import Elaborated
from polysci.frontends.notation.element_types import (
    is_real,
    tensor_types,
    type_of,
)
from polysci.frontends.notation.ranges import StatementRanges
from polysci.frontends.notation.sizes import infer_shapes
from polysci.frontends.notation.statements import Elements
from polysci.frontends.notation.syntax import (
    Assignment,
    AxisExtent,
    Conversion,
    Element,
    IndexRange,
    Literal,
    Operation,
    Term,
    names_in,
    parts,
    walk_terms,
)
from polysci.loop_ir.element_values import evaluate
from polysci.polyhedral.affine import Affine

OUTSIDE: Final = "outside_"  # begins the names of the counts
MOST_VALUES: Final = 1 << 20  # of iterators, at which subscripts are computed ahead


class ComputedSubscript(NamedTuple):
    """A computed subscript, and when it is read outside its axis."""

    element: Element
    axis: int
    outside: Term


def check_subscripts(
    ranges: StatementRanges, types: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raises SpecError for a computed subscript that leaves its axis whatever the data are."""
    for element, axis, outside in _reads(ranges, types, ranges.statement.value, ()):
        subscript = element.index[axis]
        names = [name for name in names_in(outside) if name in ranges.iterators]
        bounds = [ranges.bounds(name) for name in names]
        extents = [end - first for first, end in bounds]
        is_known = not any(isinstance(part, Element) for part in walk_terms(outside))
        if not is_known or prod(extents) > MOST_VALUES:
            continue
        elements = Elements(ranges, types, shapes)
        elements.iterators = {
            name: Affine(((f"i{at}", 1),), first)
            for at, (name, (first, _)) in enumerate(zip(names, bounds, strict=True))
        }
        expr, _ = elements.expr(outside)
        if not (where := evaluate(expr, extents, {}).astype(bool)).any():
            continue
        values = np.asarray(evaluate(elements.expr(subscript)[0], extents, {}))[where]
        what = (
            f"{element}: {subscript} takes values {values.min()} to {values.max()}, "
            f"but axis {axis} has 0 to {shapes[element.tensor][axis] - 1}"
        )
        raise ranges.error(subscript.at or ranges.statement.at, what)


def with_index_checks(whole: Elaborated, sizes: Mapping[str, int]) -> Elaborated:
    """The comprehension with a count for each computed subscript, as outputs behind its own."""
    inference, types = infer_shapes(whole, sizes), tensor_types(whole.comprehension)
    statements, counts = list[Assignment](), list[str]()
    for ranges in inference.statements:
        for read in _reads(ranges, types, ranges.statement.value, ()):
            counts.append(f"{OUTSIDE}{len(counts)}")
            statements.append(_count(ranges, counts[-1], read.outside))
        statements.append(ranges.statement)
    comprehension = replace(
        whole.comprehension, statements=tuple(statements),
        outputs=(*whole.comprehension.outputs, *counts),
    )  # fmt: skip
    ranks = {**whole.ranks, **dict.fromkeys(counts, 0)}
    return replace(whole, comprehension=comprehension, ranks=ranks)


def _count(ranges: StatementRanges, name: str, condition: Term) -> Assignment:
    """``name +=! condition ? 1 : 0`` over the iterators of the condition."""
    bounds = tuple(
        IndexRange(iterator, Literal(first), Literal(end))
        for iterator in names_in(condition) if iterator in ranges.iterators
        for first, end in [ranges.bounds(iterator)]
    )  # fmt: skip
    value = Operation("select", (condition, Literal(1), Literal(0)), ranges.statement.at)
    return Assignment(name, (), "+=", True, value, bounds, (), ranges.statement.at)


def _reads(
    ranges: StatementRanges, types: Mapping[str, str], term: Term, given: tuple[Term, ...]
) -> Iterator[ComputedSubscript]:
    """The computed subscripts of a term that is computed where all of ``given`` hold."""
    if isinstance(term, Operation) and term.function == "select":
        condition, body, otherwise = term.arguments
        yield from _reads(ranges, types, condition, given)
        yield from _reads(ranges, types, body, (*given, condition))
        yield from _reads(ranges, types, otherwise, (*given, Operation("not", (condition,))))
        return
    for part in parts(term):
        yield from _reads(ranges, types, part, given)
    if isinstance(term, Element):
        for axis, part in enumerate(term.index):
            if ranges.affine(part) is None:
                if is_real(type_of(part, types)):
                    part = Conversion("int64", part)  # as it is read
                below = Operation("less", (part, Literal(0)))
                extent = AxisExtent(term.tensor, axis)
                result: Term = Operation("or", (below, Operation("greater_equal", (part, extent))))
                for condition in given:
                    result = Operation("and", (condition, result))
                yield ComputedSubscript(element=term, axis=axis, outside=result)
