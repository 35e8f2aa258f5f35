"""Statements that count the computed subscripts outside their axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from polysci.network.frontends.notation.elaborate import Elaborated
from polysci.network.frontends.notation.element_types import (
    is_real,
    tensor_types,
    type_of,
)
from polysci.network.frontends.notation.ranges import StatementRanges
from polysci.network.frontends.notation.sizes import infer_shapes
from polysci.network.frontends.notation.syntax import (
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
)

OUTSIDE: Final = "outside_"  # begins the names of the counts


def with_index_checks(whole: Elaborated, sizes: Mapping[str, int]) -> Elaborated:
    """The comprehension with a count for each computed subscript, as outputs behind its own."""
    inference, types = infer_shapes(whole, sizes), tensor_types(whole.comprehension)
    statements, counts = list[Assignment](), list[str]()
    for ranges in inference.statements:
        for condition in _outside(ranges, types, ranges.statement.value, ()):
            counts.append(f"{OUTSIDE}{len(counts)}")
            statements.append(_count(ranges, counts[-1], condition))
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


def _outside(
    ranges: StatementRanges, types: Mapping[str, str], term: Term, given: tuple[Term, ...]
) -> Iterator[Term]:
    """Of each computed subscript the condition that it is read outside its axis."""
    if isinstance(term, Operation) and term.function == "select":
        condition, body, otherwise = term.arguments
        yield from _outside(ranges, types, condition, given)
        yield from _outside(ranges, types, body, (*given, condition))
        yield from _outside(ranges, types, otherwise, (*given, Operation("not", (condition,))))
        return
    for part in parts(term):
        yield from _outside(ranges, types, part, given)
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
                yield result
