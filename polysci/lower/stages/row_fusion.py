"""A row fusion as loop IR: its members take turns, each some rows at a time as its loop says.

Rows that are made and not read yet lie in a ring a thread: row r of a tensor at
``at + (r - base) * bytes``. Where the end is reached, what is still needed moves to the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from polysci.loop_ir.index import Variable, as_index, compare, divide, least, most
from polysci.loop_ir.nodes import (
    Address,
    Assign,
    Before,
    Buffer,
    Convert,
    Declare,
    Element,
    Fields,
    For,
    If,
    Invoke,
    Let,
    LoopFunction,
    LoopKind,
    LoopStatement,
    Member,
    Named,
    Point,
    ScalarParameter,
    Scope,
    Unused,
    Value,
    block,
    loop,
)
from polysci.lower.layer_calls import LayerCall
from polysci.lower.stages.accumulators import Statements
from polysci.lower.stages.loops import MEMORY, Pointer
from polysci.numerics import arrays
from polysci.numerics.arrays import round_up
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.operands import Rows, RowWindow, rows_read
from polysci.program.stages import RowFusion

RING = 64 << 10  # bytes that a ring may have beyond what it needs, so that it seldom moves
_STATIC: Final = ("static",)
_PARAMETERS: Final = (
    MEMORY, Buffer("r", "ps_ring"), Buffer("work", "byte"), ScalarParameter("from"),
    ScalarParameter("upto"),
)  # fmt: skip


@dataclass(slots=True)
class RowFusionLowering:
    """A row fusion on its way to loop IR: code of its layers, ``calls_to`` all its members."""

    stage: RowFusion
    placed: PlacedProgram
    calls: Mapping[int, LayerCall]
    threads: int
    symbol: str
    calls_to: dict[int, LoopStatement] = field(default_factory=dict)

    def rows(self, inside: int) -> RowWindow:
        """Return which rows member ``inside`` reads of the one before it."""
        tensor = self.stage.members[inside - 1].output
        source, result = self.placed.rows_of(tensor), self.made(inside)
        assert source is not None
        window = rows_read(self.stage.members[inside], tensor, source, result)
        assert window is not None
        return window

    def made(self, inside: int) -> Rows:
        """Return the rows that a member makes."""
        rows = self.placed.rows_of(self.stage.members[inside].output)
        assert rows is not None
        return rows

    def height(self, inside: int) -> int:
        """Rows that a member makes."""
        return self.made(inside).height

    def step(self, inside: int) -> int:
        """Rows that a member makes at a time."""
        call = self.calls.get(inside)
        return call.schedule.loops[0].step if call else 1

    def row_bytes(self, inside: int) -> int:
        value = self.placed.program.values[self.stage.members[inside].output]
        return value.bytes // self.height(inside)

    def capacity(self, inside: int) -> int:
        """Rows of a ring."""
        window, step = self.rows(inside + 1), self.step(inside)
        held = window.held(step, self.step(inside + 1))
        return min(held + RING // self.row_bytes(inside), self.height(inside) + step)

    def ring_bytes(self, inside: int) -> int:
        size = self.capacity(inside) * self.row_bytes(inside)
        return round_up(size) + arrays.ALIGNMENT

    @property
    def work_bytes(self) -> int:
        """The bytes of packed copies, for a thread."""
        most = max((call.source.workspace for call in self.calls.values()), default=0)
        return round_up(most)

    def memory(self) -> dict[str, int]:
        """Return the bytes of rings and of packed copies, by their names in the arena."""
        sizes = {
            f"{self.symbol} ring{inside}": self.threads * self.ring_bytes(inside)
            for inside in range(len(self.stage.members) - 1)
        }
        if self.work_bytes:
            sizes[f"{self.symbol} work"] = self.threads * self.work_bytes
        return sizes

    def pointers(self) -> dict[str, Pointer]:
        """Return, by internal tensor, where its first row would lie."""
        return {
            name: Before(Member(ring, "at"), Member(ring, "base"), self.row_bytes(inside))
            for inside, name in enumerate(self.stage.internal)
            for ring in [_ring(inside)]
        }

    def local(self, inside: int) -> dict[str, Pointer]:
        """Return pointers in a function of loops, which gets them as arguments."""
        names = self.stage.internal
        pointers: dict[str, Pointer] = {names[inside - 1]: Named("in")} if inside else {}
        return pointers | ({names[inside]: Named("out")} if inside < len(names) else {})

    def ends(self, inside: int) -> tuple[Value, Value]:
        """Return those arguments; 0 for a tensor that is not internal."""
        rows: list[Value] = [
            0,
            *(Address(row, dtype="opaque") for row in self.pointers().values()),
            0,
        ]
        return rows[inside], rows[inside + 1]

    def functions(self, offsets: Mapping[str, int]) -> list[LoopFunction]:
        """Return the functions of all members, then the row fusion's own."""
        last = len(self.stage.members) - 1
        members = [self.member_function(inside) for inside in range(last)]
        return [*members, self.fusion_function(offsets, last)]

    def member_function(self, inside: int) -> LoopFunction:
        """Return a function that makes the rows of an internal tensor up to one.

        Rows ``from`` on are still needed; those before ``done`` are made.
        """
        ring, step = _ring(inside), self.step(inside)
        first, begin = Variable("first"), divide(Variable("from"), step) * step
        turn = block(
            Let("last", least(first + step, self.height(inside))),
            *self.make_input_rows(inside),
            Let("base", Member(ring, "base")),
            self.make_room(inside),
            self.calls_to[inside],
            Assign(Member(ring, "done"), Variable("last")),
        )
        body = block(
            Unused(("m", "work")),
            Let("made", Member(ring, "done")),
            If(
                compare(Variable("made"), "<", 0),
                block(Assign(Member(ring, "base"), begin), Assign(Member(ring, "done"), begin)),
            ),
            Let("start", Member(ring, "done")),
            For("first", Variable("start"), Variable("upto"), turn, step),
        )
        return LoopFunction(f"{self.symbol}_rows{inside}", _PARAMETERS, body, attributes=_STATIC)

    def make_room(self, inside: int) -> If:
        """Return the move of rows that are still needed to the beginning of a ring that is full."""
        ring, size = _ring(inside), self.row_bytes(inside)
        keep, base, done = Variable("keep"), Variable("base"), Variable("first")
        rows = Address(Member(ring, "at"), (keep - base) * size)
        count = Convert("size", (done - keep) * size)
        move = block(
            Let("keep", least(Variable("from"), done)),
            Invoke("memmove", (Member(ring, "at"), rows, count)),
            Assign(Member(ring, "base"), keep),
        )
        return If(compare(Variable("last") - base, ">", self.capacity(inside)), move)

    def make_input_rows(self, inside: int) -> Statements:
        """Return the call that makes the rows of the tensor before which this one reads."""
        if not inside:
            return []
        window, first, last = self.rows(inside), Variable("first"), Variable("last")
        low = most(0, first * window.step + window.low)
        high = least(window.extent, (last - 1) * window.step + window.high + 1)
        names = Named("m"), Named("r"), Named("work")
        return [Invoke(f"{self.symbol}_rows{inside - 1}", (*names, low, high))]

    def fusion_function(self, offsets: Mapping[str, int], last: int) -> LoopFunction:
        """Return the function of the last member, whose rows the threads share."""
        step, height = self.step(last), self.height(last)
        blocks, thread, first = -(-height // step), Variable("thread"), Variable("first")
        arena = Member("m", "arena", pointed=True)
        work: Address | int = 0
        if self.work_bytes:
            work = Address(arena, offsets[f"{self.symbol} work"] + self.work_bytes * thread)
        rings = tuple(
            Fields((
                ("at", Address(arena, offsets[f"{self.symbol} ring{inside}"]
                               + self.ring_bytes(inside) * thread)),
                ("done", -1),
            ))
            for inside in range(last)
        )  # fmt: skip
        turn = block(
            Let("last", least(first + step, height)),
            *self.make_input_rows(last),
            self.calls_to[last],
        )
        start, end = (divide(blocks * at, self.threads) * step for at in (thread, thread + 1))
        turns = loop(
            "thread", self.threads,
            Declare(Buffer("r", "ps_ring", as_index(last), Scope.STACK), rings),
            Point(Buffer("work", "byte"), work),
            Unused(("work",)),
            For("first", start, end, turn, step),
        )  # fmt: skip
        if self.threads > 1:
            turns = replace(turns, kind=LoopKind.PARALLEL)
        return LoopFunction(self.symbol, _PARAMETERS[:1], block(turns), attributes=_STATIC)


def _ring(inside: int) -> Element:
    """Return the record of the ring of a member's rows."""
    return Element("r", as_index(inside))
