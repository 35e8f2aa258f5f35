"""Private copies: which one a turn sums into, and the sum of all at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from polysci.loop_ir.index import (
    Condition,
    Index,
    IndexLike,
    Variable,
    as_index,
    compare,
    every,
    linear,
)
from polysci.loop_ir.nodes import (
    Address,
    Alternative,
    Arithmetic,
    Assign,
    Buffer,
    Compute,
    Constant,
    Element,
    If,
    Invoke,
    Let,
    LoopFunction,
    LoopStatement,
    Member,
    Named,
    Point,
    Result,
    ScalarParameter,
    Store,
    Value,
    block,
    loop,
)
from polysci.space.directives.private import PrivateCopies
from polysci.space.resolve import Plan

_READ: Mapping[str, str] = {"bf16": "ps_bf16_value", "f16": "ps_f16_value"}
_WRITTEN: Mapping[str, str] = {"bf16": "ps_bf16_of", "f16": "ps_f16_of"}


def copy_of(private: PrivateCopies, origin: Mapping[str, Index], at: int) -> LoopStatement:
    """Return the statement that lets a turn's calls write to its copy, ``at`` bytes along."""
    place, size = as_index(0), private.size * private.count
    for dim, (step, turns) in private.turns.items():
        size //= turns
        place = place + size * (origin[dim] // step)
    return Assign(Member("local", "y"), Address(_copies(at), place))


def _copies(at: int) -> Address:
    return Address(Address(Named("workspace"), as_index(at), "char"), dtype="ps_y")


def starts_of(plan: Plan, private: PrivateCopies, origin: Mapping[str, IndexLike]) -> Condition:
    """Return whether a call is the first one of its copy that adds to its sums."""
    starts = []
    for dim in plan.split:
        step, _ = private.turns.get(dim, (0, 0))
        if step != plan.tile[dim]:
            at = as_index(origin[dim])
            starts.append(compare(at % step if step else at, "==", 0))
    return every(starts)


def call_sums(symbol: str, plan: Plan, at: int, threads: int) -> LoopStatement:
    """Return the statement with which a thread sums its share of the copies."""
    assert plan.private
    rows, *_ = _rows(plan.private, plan.channel_axis)
    share: tuple[Index, Index] = (as_index(0), as_index(rows))
    if threads > 1:
        thread = Variable("thread")
        share = (rows * thread // threads, rows * (thread + 1) // threads)
    operands = map(Named, ("y", "bias", "residual", "clamp"))
    return Invoke(f"{symbol}_sum", (_copies(at), *operands, *share))


def sums_function(symbol: str, plan: Plan, private: PrivateCopies) -> LoopFunction:
    """Return ``SYMBOL_sum(copies, y, bias, residual, clamp, first, last)``: rows of y.

    Copies are added in pairs, pairs of pairs and so on, whoever does it; then follow bias,
    residual, activation and clamp in the order of ``ps_end``.
    """
    kind, channel = private.y.c_type, plan.channel_axis
    _, around, run = _rows(private, channel)
    lines, rest = list[LoopStatement](), Variable("row") + 0
    for axis in reversed(around):
        lines.append(Let(f"at{axis}_", rest % private.shape[axis]))
        rest = rest // private.shape[axis]
    places = {str(axis): Variable(f"at{axis}_") for axis in around}
    place = linear({str(axis): private.stored[axis] for axis in around}, places)
    residual = Alternative(Named("residual"), Address(Named("residual"), place), 0)
    bias = places[str(channel)] if channel in around else Variable("i")
    lines += [
        Point(
            Buffer("from", "float", const=True, restrict=True),
            Address(Named("copies"), run * Variable("row")),
        ),
        Point(Buffer("to", kind), Address(Named("y"), place)),
        Point(Buffer("beside", kind, const=True), residual),
        loop("i", run, *_sum_statements(plan, private, Element("bias", bias))),
    ]
    parameters = (
        Buffer("copies", "float", const=True, restrict=True),
        Buffer("y", kind),
        Buffer("bias", "float", const=True),
        Buffer("residual", kind, const=True),
        Buffer("clamp", "float", const=True),
        ScalarParameter("first"),
        ScalarParameter("last"),
    )
    rows = loop("row", Variable("last"), *lines, start=Variable("first"))
    return LoopFunction(f"{symbol}_sum", parameters, block(rows))


def _sum_statements(plan: Plan, private: PrivateCopies, bias: Element) -> list[LoopStatement]:
    """The statements that compute element i of a row: its copies' sum, then the epilogue."""
    alpha, beta = plan.contraction.alpha, plan.contraction.beta
    places = range(0, private.size * private.count, private.size)
    copies: list[Value] = [Element("from", Variable("i") + at) for at in places]
    sums, beside = Named("sum"), _converted(_READ, private, Element("beside", Variable("i")))
    lines: list[LoopStatement] = [
        Let("sum", _scaled(alpha, _tree(copies)), "float", const=False),
        If(Named("bias"), block(_add(bias))),
        If(Named("residual"), block(_add(_scaled(beta, beside)))),
    ]
    if plan.contraction.activation:
        lines.append(Assign("sum", Result(f"ps_f_{plan.contraction.activation}", (sums,))))
    low, high = (Element("clamp", as_index(at)) for at in (0, 1))
    clamps = [
        Assign("sum", Alternative(Compute("greater", "float", (low, sums)), low, sums)),
        Assign("sum", Alternative(Compute("less", "float", (high, sums)), high, sums)),
    ]
    written = _converted(_WRITTEN, private, sums)
    return [*lines, If(Named("clamp"), block(*clamps)), Store("to", Variable("i"), written)]


def _add(value: Value) -> LoopStatement:
    return Assign("sum", Arithmetic("+", Named("sum"), value))


def _scaled(factor: float, value: Value) -> Value:
    if factor == 1:
        return value
    return Arithmetic("*", Constant(float(np.float32(factor))), value)


def _converted(table: Mapping[str, str], private: PrivateCopies, value: Value) -> Value:
    """A number of y as a float, or a float as one of y."""
    routine = table.get(private.y.name)
    return Result(routine, (value,)) if routine else value


def _tree(terms: Sequence[Value]) -> Value:
    """A sum in pairs: its rounding grows with the logarithm of their number."""
    if len(terms) == 1:
        return terms[0]
    half = (len(terms) + 1) // 2
    return Arithmetic("+", _tree(terms[:half]), _tree(terms[half:]))


def _rows(private: PrivateCopies, channel: int) -> tuple[int, list[int], int]:
    """How many rows the sum has, their axes from the slowest on, and the elements of a row.

    A row lies in y without gaps, and one bias or one after the other belongs to it.
    """
    axes = sorted(range(len(private.shape)), key=lambda axis: (-private.strides[axis], axis))
    run = 1
    while axes:
        axis = axes[-1]
        size = private.shape[axis]
        if run > 1 and axis == channel:  # of one position too: all of the run have its bias
            break
        if size > 1 and private.stored[axis] != run:
            break
        run *= size
        axes.pop()
        if axis == channel:
            break
    return prod(private.shape[axis] for axis in axes), axes, run
