"""``private(C)``: copies of the result, one for each turn of the parallel loops over reductions.

Without such loops there is one, where the result cannot keep partial sums. Their number follows
from the schedule alone: whatever threads there are, the same sums are formed in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Self

import numpy as np

from polysci.errors import UnsupportedError
from polysci.loop_ir.index import Index, Variable, as_index, linear, thread_share
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
    RoutineResult,
    ScalarParameter,
    Store,
    Value,
    block,
    loop,
)
from polysci.numerics.arrays import round_up
from polysci.numerics.dtypes import COMPUTES, DTYPES, DType
from polysci.polyhedral.contraction import Contraction
from polysci.space.directives.directive import Directive, EntryPoint
from polysci.target.microkernels import Microkernel

if TYPE_CHECKING:
    from polysci.polyhedral.tile_schedule import Loop
    from polysci.space.enumerate import Family
    from polysci.space.plan import Plan
    from polysci.space.schedule import Schedule

MOST_COPIES = 32  # that the end sums: their bytes grow with them
_READ: Mapping[str, str] = {"bf16": "ps_bf16_value", "f16": "ps_f16_value"}
_WRITTEN: Mapping[str, str] = {"bf16": "ps_bf16_of", "f16": "ps_f16_of"}


@dataclass(frozen=True, slots=True)
class Private(Directive):
    """Each turn of a parallel loop over a reduction sums into a copy of C; the end adds these."""

    word = "private(C)"
    sentence = "Partial sums are kept in copies of C, one for each turn of parallel reductions."
    own_turns = True

    @classmethod
    def of_member(cls, family: Family, index: int, loops: Sequence[Loop]) -> Self | None:
        """Return it for loops over reductions that are parallel, or of a ``narrow`` C."""
        summed = (loop for loop in loops if loop.dim in family.reductions)
        return cls() if any(loop.parallel or family.narrow for loop in summed) else None

    def remark(self, contraction: Contraction, schedule: Schedule, names: Sequence[str]) -> str:
        reduced = contraction.reductions
        turns = " ".join(loop.dim for loop in schedule.parallel if loop.dim in reduced)
        if turns:
            return f"each turn over {turns} sums into a copy of {names[2]} of its own"
        return f"partial sums of {names[2]} are kept in a copy"

    def begin_turn(self, entry: EntryPoint, origin: Mapping[str, Index]) -> Sequence[LoopStatement]:
        """Return the statement that lets the turn's calls write to its copy."""
        private = _copies(entry.plan)
        place, size = as_index(0), private.size * private.count
        for dim, (step, turns) in private.turns.items():
            size //= turns
            place = place + size * (origin[dim] // step)
        return (Assign(Member("local", "y"), Address(_memory(entry), place)),)

    def finish(self, entry: EntryPoint) -> Sequence[LoopStatement]:
        """Return the call with which a thread sums its share of the copies."""
        private = _copies(entry.plan)
        rows, *_ = _rows(private, entry.plan.channel_axis)
        share = thread_share(rows, entry.threads)
        operands = map(Named, ("y", "bias", "residual", "clamp"))
        return (Invoke(f"{entry.symbol}_sum", (_memory(entry), *operands, *share)),)

    def functions(self, entry: EntryPoint) -> Sequence[LoopFunction]:
        return (sums_function(entry.symbol, entry.plan, _copies(entry.plan)),)


@dataclass(frozen=True, slots=True)
class PrivateCopies:
    """Copies of a result of type ``y``, each dense and of sums.

    ``turns`` has the parallel reductions in order: the step of the loop, and its turns. Of a copy
    ``shape`` and ``strides`` are those of the array, strides of dense storage; a call stores the
    result where ``stored`` says.
    """

    y: DType
    turns: Mapping[str, tuple[int, int]]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    stored: tuple[int, ...]

    @property
    def count(self) -> int:
        return prod(turns for _, turns in self.turns.values())

    @property
    def size(self) -> int:
        """Sums from one copy to the next: whole cache lines."""
        return round_up(4 * prod(self.shape)) // 4

    @property
    def bytes(self) -> int:
        """Bytes of all copies."""
        return 4 * self.size * self.count

    def sums(self, contraction: Contraction, kernel: Microkernel) -> Contraction:
        """The contraction that calls compute: its result is a copy."""
        name = COMPUTES[kernel.compute].sum.name
        return replace(contraction, out=replace(contraction.out, dtype=name))


def copies_of(
    contraction: Contraction, stored: tuple[int, ...], schedule: Schedule, kernel: Microkernel
) -> PrivateCopies | None:
    """The copies that a schedule needs; None where its result is written as it is summed.

    Without a parallel loop over a reduction that is one copy, of a result that cannot keep partial
    sums. Raises UnsupportedError where the schedule needs none, for whole numbers, and for more
    than MOST_COPIES.
    """
    if not schedule.has(Private):
        return None
    reduced = contraction.reductions
    turns = {
        loop.dim: (loop.step, -(-contraction.extent(loop.dim) // loop.step))
        for loop in schedule.parallel
        if loop.dim in reduced
    }
    shape = contraction.out.shape
    copies = PrivateCopies(
        DTYPES[contraction.out.dtype], turns, shape, dense_strides(shape, stored), stored
    )
    looped = any(loop.dim in reduced for loop in schedule.loops)
    if not turns and not (looped and needs_copy(contraction, kernel)):
        raise UnsupportedError(f"schedule {schedule}: no parallel loop runs over a reduction")
    if COMPUTES[kernel.compute].sum.integer:
        raise UnsupportedError(f"schedule {schedule}: private copies hold sums of reals")
    if copies.count > MOST_COPIES:
        raise UnsupportedError(
            f"schedule {schedule}: {copies.count} private copies of {contraction.out.array}: "
            f"expected at most {MOST_COPIES}"
        )
    return copies


def needs_copy(contraction: Contraction, kernel: Microkernel) -> bool:
    """Return whether partial sums need a copy: B changes between calls and C has narrower reals."""
    sums = COMPUTES[kernel.compute].sum
    return contraction.packs_b and not sums.integer and contraction.out.dtype != sums.name


def dense_strides(shape: Sequence[int], stored: Sequence[int]) -> tuple[int, ...]:
    """Strides without gaps, the axes in the order in which they are stored."""
    strides, step = [0] * len(shape), 1
    for axis in sorted(range(len(shape)), key=lambda axis: (stored[axis], -axis)):
        strides[axis], step = step, step * shape[axis]
    return tuple(strides)


def _copies(plan: Plan) -> PrivateCopies:
    """Return the copies of a plan that has some."""
    assert plan.private
    return plan.private


def _memory(entry: EntryPoint) -> Address:
    """Return where the copies begin."""
    start = Address(Named("workspace"), as_index(entry.workspace.sums_at), "byte")
    return Address(start, dtype="ps_y")


def sums_function(symbol: str, plan: Plan, private: PrivateCopies) -> LoopFunction:
    """Return ``SYMBOL_sum(copies, y, bias, residual, clamp, first, last)``: rows of y.

    Copies are added in pairs, pairs of pairs and so on, whoever does it; then follow bias,
    residual, activation and clamp in the order of ``ps_end``.
    """
    kind, channel = private.y.stored, plan.channel_axis
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
            Buffer("from", "float32", const=True, restrict=True),
            Address(Named("copies"), run * Variable("row")),
        ),
        Point(Buffer("to", kind), Address(Named("y"), place)),
        Point(Buffer("beside", kind, const=True), residual),
        loop("i", run, *_sum_statements(plan, private, Element("bias", bias))),
    ]
    parameters = (
        Buffer("copies", "float32", const=True, restrict=True),
        Buffer("y", kind),
        Buffer("bias", "float32", const=True),
        Buffer("residual", kind, const=True),
        Buffer("clamp", "float32", const=True),
        ScalarParameter("first"),
        ScalarParameter("last"),
    )
    rows = loop("row", Variable("last"), *lines, start=Variable("first"))
    return LoopFunction(f"{symbol}_sum", parameters, block(rows))


def _sum_statements(plan: Plan, private: PrivateCopies, bias: Element) -> list[LoopStatement]:
    """Return the statements of element i of a row: its copies' sum, then the epilogue."""
    alpha, beta = plan.contraction.alpha, plan.contraction.beta
    places = range(0, private.size * private.count, private.size)
    copies: list[Value] = [Element("from", Variable("i") + at) for at in places]
    sums, beside = Named("sum"), _convert(_READ, private, Element("beside", Variable("i")))
    lines: list[LoopStatement] = [
        Let("sum", _scale(alpha, _tree(copies)), "float32", const=False),
        If(Named("bias"), block(_add(bias))),
        If(Named("residual"), block(_add(_scale(beta, beside)))),
    ]
    if plan.contraction.activation:
        lines.append(Assign("sum", RoutineResult(f"ps_f_{plan.contraction.activation}", (sums,))))
    low, high = (Element("clamp", as_index(at)) for at in (0, 1))
    clamps = [
        Assign("sum", Alternative(Compute("greater", "float32", (low, sums)), low, sums)),
        Assign("sum", Alternative(Compute("less", "float32", (high, sums)), high, sums)),
    ]
    written = _convert(_WRITTEN, private, sums)
    return [*lines, If(Named("clamp"), block(*clamps)), Store("to", Variable("i"), written)]


def _add(value: Value) -> LoopStatement:
    return Assign("sum", Arithmetic("+", Named("sum"), value))


def _scale(factor: float, value: Value) -> Value:
    if factor == 1:
        return value
    return Arithmetic("*", Constant(float(np.float32(factor))), value)


def _convert(table: Mapping[str, str], private: PrivateCopies, value: Value) -> Value:
    """Return a number of y as a float, or a float as one of y."""
    routine = table.get(private.y.name)
    return RoutineResult(routine, (value,)) if routine else value


def _tree(terms: Sequence[Value]) -> Value:
    """Return a sum in pairs: its rounding grows with the logarithm of their number."""
    if len(terms) == 1:
        return terms[0]
    half = (len(terms) + 1) // 2
    return Arithmetic("+", _tree(terms[:half]), _tree(terms[half:]))


def _rows(private: PrivateCopies, channel: int) -> tuple[int, list[int], int]:
    """Return how many rows the sum has, their axes, the slowest first, and a row's elements.

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
