"""Arguments of whole numbers in tiles of groups: offsets, zero points and scales."""

from __future__ import annotations

from collections.abc import Sequence

from polysci.loop_ir.index import Variable, as_index, iterator, linear
from polysci.loop_ir.nodes import (
    Address,
    Arithmetic,
    Assign,
    Buffer,
    Convert,
    Element,
    Let,
    LoopStatement,
    Member,
    Named,
    Point,
    Store,
    block,
    loop,
)
from polysci.lower.direct.panels import clear_bytes
from polysci.lower.mapped.plan import MappedPlan
from polysci.numerics.arrays import round_up
from polysci.polyhedral.contraction import Dim


def integer_arguments(plan: MappedPlan) -> list[LoopStatement]:
    """Return the statements of a launch that take offsets, what x holds for 0, and scales."""
    if not plan.precision.integer:
        return []
    offset = Member("args", "offset")
    lines: list[LoopStatement] = [
        Assign(offset, Address(_behind(plan, const=True), dtype="int32", const=True)),
        Assign(Member("args", "x_zero"), Element(offset, as_index(plan.offsets))),
    ]
    return [*lines, *[Assign(Member("args", "to"), Named("to"))] * plan.precision.scaled]


def offsets(plan: MappedPlan) -> list[LoopStatement]:
    """Return the statements of packing that write what x_zero adds to each sum, and x_zero."""
    if not plan.precision.integer:
        return []
    channel, w = plan.channels_of_bias, plan.contraction.w
    weight, own = w.offset(plan.strides[w.array]), (*plan.batches, plan.column)
    summed = (*plan.around, *plan.deep)
    at = {dim.name: iterator(dim.name) for dim in (*own, *summed)}
    unsigned = Convert("uint32", Element("w", linear(dict(weight.terms), at, weight.const)))
    body: LoopStatement = Assign("sum", Arithmetic("+", unsigned, Named("sum")))
    body = _loops(summed, body)
    added = Arithmetic("*", Convert("uint32", Variable("x_zero")), Named("sum"))
    place = linear(dict(channel.terms) | plan.offsets_apart, at, channel.const)
    negated = Convert("int32", Arithmetic("-", 0, added))
    body = block(Let("sum", 0, "uint32", const=False), body, Store("offset", place, negated))
    return [
        *clear_bytes(plan.packed_elements * plan.factor_bytes, _start(plan)),
        Point(Buffer("offset", "int32", restrict=True), Address(_behind(plan), dtype="int32")),
        _loops(own, body),
        Store("offset", as_index(plan.offsets), Named("x_zero")),
    ]


def _loops(dims: Sequence[Dim], body: LoopStatement) -> LoopStatement:
    """Return the loops over some dimensions around a statement."""
    for dim in reversed(dims):
        body = loop(iterator(dim.name).name, dim.extent, body)
    return body


def _start(plan: MappedPlan) -> int:
    """Return the byte of packed memory at which offsets begin."""
    return round_up(plan.packed_elements * plan.factor_bytes)


def _behind(plan: MappedPlan, *, const: bool = False) -> Address:
    return Address(Named("packed"), as_index(_start(plan)), "byte", const=const)
