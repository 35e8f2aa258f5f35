"""A row fusion as loop IR: its members take turns, each some rows at a time as its loop says.

Rows that some member has yet to read lie in a ring a thread: row r of a tensor at
``at + (r - base) * bytes``. Where the end is reached, what is still needed moves to the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from math import sqrt
from typing import Final

from polysci.loop_ir.index import (
    Index,
    IndexLike,
    Variable,
    as_index,
    ceil_divide,
    compare,
    divide,
    floor_divide,
    least,
    most,
    remainder,
)
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
from polysci.program.passes.operands import Rows, part_height
from polysci.program.passes.row_turns import (
    RowTurns,
    buffers_read,
    reads_among,
    rows_of_loops,
    window_of,
)
from polysci.program.stages import LayerStage, LoopStage, RowFusion

RING = 64 << 10  # bytes a ring that all share beyond what they need, so that rows seldom move
_STATIC: Final = ("static",)
_PARAMETERS: Final = (
    MEMORY, Buffer("r", "ps_ring"), Buffer("work", "byte"), ScalarParameter("upto"),
)  # fmt: skip


@dataclass(slots=True)
class RowFusionLowering:
    """A row fusion on its way to loop IR: code of its layers, ``calls_to`` all its members.

    Every thread has a ring a member; that of the last one only says which rows are done.
    """

    stage: RowFusion
    placed: PlacedProgram
    calls: Mapping[int, LayerCall]
    threads: int
    symbol: str
    calls_to: dict[int, LoopStatement] = field(default_factory=dict)
    turns: RowTurns = field(init=False)
    capacities: tuple[int, ...] = field(init=False)  # rows of each ring

    def __post_init__(self) -> None:
        members = self.stage.members
        read, window = partial(buffers_read, self.placed), partial(window_of, self.placed)
        reads = reads_among([member.output for member in members], members, read, window)
        numbers = range(len(members))
        heights, steps = map(self.height, numbers), map(self.step, numbers)
        self.turns = RowTurns((*heights,), (*steps,), reads)
        sizes = [*map(self.row_bytes, range(self.last))]
        self.capacities = capacities(self.turns, sizes, self.last * RING)

    @property
    def last(self) -> int:
        """The number of the last member."""
        return self.turns.last

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
        member = self.stage.members[inside]
        if isinstance(member, LoopStage):
            return rows_of_loops(self.placed, member)
        return min(self.part(inside), self.calls[inside].schedule.loops[0].step)

    def part(self, inside: int) -> int:
        """Rows between borders that no turn of a member crosses."""
        member, made = self.stage.members[inside], self.made(inside)
        return part_height(member, made) if isinstance(member, LayerStage) else made.height

    def turns_before(self, inside: int, row: Index) -> Index:
        """Return how many turns of a member make all rows before one."""
        part, step = self.part(inside), self.step(inside)
        if part % step == 0 or part == self.height(inside):
            return ceil_divide(row, step)
        whole = floor_divide(row, part)
        return whole * -(-part // step) + ceil_divide(row - whole * part, step)

    def first_row(self, inside: int, turn: Index) -> Index:
        """Return the first row that a turn of a member makes."""
        part, step = self.part(inside), self.step(inside)
        if part % step == 0 or part == self.height(inside):
            return turn * step
        turns = -(-part // step)
        return divide(turn, turns) * part + remainder(turn, turns) * step

    def row_bytes(self, inside: int) -> int:
        value = self.placed.program.values[self.stage.members[inside].output]
        return value.bytes // self.height(inside)

    def ring_bytes(self, inside: int) -> int:
        size = self.capacities[inside] * self.row_bytes(inside)
        return round_up(size) + arrays.ALIGNMENT

    def packed_at(self, inside: int) -> int:
        """Return where the weights lie that a thread packs for a member, behind packed copies."""
        before = [
            round_up(call.source.packed) for at, call in self.calls.items()
            if at < inside and call.packs and call.layer.copies
        ]  # fmt: skip
        most = max((call.source.workspace for call in self.calls.values()), default=0)
        return round_up(most) + sum(before)

    @property
    def work_bytes(self) -> int:
        """The bytes that a thread needs besides rings."""
        return self.packed_at(len(self.stage.members))

    def memory(self) -> dict[str, int]:
        """Return the bytes of rings and of packed copies, by their names in the arena."""
        sizes = {
            f"{self.symbol} ring{inside}": self.threads * self.ring_bytes(inside)
            for inside in range(self.last)
        }
        if self.work_bytes:
            sizes[f"{self.symbol} work"] = self.threads * self.work_bytes
        return sizes

    def pointers(self) -> dict[str, Pointer]:
        """Return, by internal tensor, where its first row would lie."""
        return {
            name: Before(Member(ring, "at"), Member(ring, "base"), self.row_bytes(inside))
            for inside, name in enumerate(self.stage.internal)
            for ring in [ring_of(inside)]
        }

    def local(self, inside: int) -> dict[str, str]:
        """Return, by internal tensor, the name of a pointer in a member's function of loops."""
        names = self.stage.internal
        used = [its.maker for its in self.turns.inputs(inside)] + [inside]
        return {names[at]: f"t{at}" for at in used if at < self.last}

    def operands(self, inside: int) -> list[Value]:
        """Return the values of those pointers."""
        pointers = self.pointers()
        return [Address(pointers[name], dtype="opaque") for name in self.local(inside)]

    def functions(self, offsets: Mapping[str, int]) -> list[LoopFunction]:
        """Return the functions of all members, then the row fusion's own."""
        members = [self.member_function(inside) for inside in range(self.last)]
        return [*members, self.fusion_function(offsets)]

    def member_function(self, inside: int) -> LoopFunction:
        """Return a function that makes the rows of an internal tensor up to one."""
        rows = self.make_rows(inside, Variable("start"), Variable("upto"), self.make_room(inside))
        body = block(Unused(("m", "work")), Let("start", Member(ring_of(inside), "done")), rows)
        return LoopFunction(f"{self.symbol}_rows{inside}", _PARAMETERS, body, attributes=_STATIC)

    def make_rows(self, inside: int, start: Index, end: Index, room: Statements) -> For:
        """Return the turns of a member, which make its rows from one on up to another one."""
        first, part, step = Variable("first"), self.part(inside), self.step(inside)
        start, end = (self.turns_before(inside, row) for row in (start, end))
        border = (divide(first, part) + 1) * part if part < self.height(inside) else part
        turn = block(
            Let("first", self.first_row(inside, Variable("turn"))),
            Let("last", least(first + step, border)),
            *self.make_input_rows(inside),
            *room,
            self.calls_to[inside],
            Assign(Member(ring_of(inside), "done"), Variable("last")),
        )
        return For("turn", start, end, turn)

    def make_room(self, inside: int) -> Statements:
        """Return the move of rows that are still needed to the beginning of a ring that is full."""
        if self.capacities[inside] == self.height(inside):
            return []
        ring, size = ring_of(inside), self.row_bytes(inside)
        keep, base, done = Variable("keep"), Variable("base"), Variable("first")
        needed: list[IndexLike] = [
            most(0, its.window.step * Variable(f"done{its.reader}") + its.window.low)
            for its in self.turns.readers(inside)
        ]
        rows = Address(Member(ring, "at"), (keep - base) * size)
        count = Convert("size", (done - keep) * size)
        move = block(
            *(
                Let(f"done{its.reader}", Member(ring_of(its.reader), "done"))
                for its in self.turns.readers(inside)
            ),
            Let("keep", reduce(least, [done, *needed])),
            Invoke("memmove", (Member(ring, "at"), rows, count)),
            Assign(Member(ring, "base"), keep),
        )
        full = compare(Variable("last") - base, ">", self.capacities[inside])
        return [Let("base", Member(ring, "base")), If(full, move)]

    def make_input_rows(self, inside: int) -> Statements:
        """Return the calls that make the rows of others that the next turn reads."""
        names, last = (Named("m"), Named("r"), Named("work")), Variable("last")
        return [
            Invoke(
                f"{self.symbol}_rows{its.maker}",
                (*names, least(window.extent, (last - 1) * window.step + window.high + 1)),
            )
            for its in self.turns.inputs(inside) for window in [its.window]
        ]  # fmt: skip

    def fusion_function(self, offsets: Mapping[str, int]) -> LoopFunction:
        """Return the function of the last member, whose rows the threads share."""
        part, thread = self.part(self.last), Variable("thread")
        turns = self.height(self.last) // part * -(-part // self.step(self.last))
        arena = Member("m", "arena", pointed=True)
        work: Address | int = 0
        if self.work_bytes:
            work = Address(arena, offsets[f"{self.symbol} work"] + self.work_bytes * thread)
        start, end = (
            self.first_row(self.last, divide(turns * at, self.threads))
            for at in (thread, thread + 1)
        )
        shares = loop(
            "thread", self.threads,
            *self.begin(start),
            Declare(
                Buffer("r", "ps_ring", as_index(self.last + 1), Scope.STACK), self.rings(offsets)
            ),
            Point(Buffer("work", "byte"), work),
            Unused(("work",)),
            self.make_rows(self.last, Variable(f"begin{self.last}"), end, []),
        )  # fmt: skip
        if self.threads > 1:
            shares = replace(shares, kind=LoopKind.PARALLEL)
        return LoopFunction(self.symbol, _PARAMETERS[:1], block(shares), attributes=_STATIC)

    def begin(self, start: Index) -> list[Let]:
        """Return the definitions of the first row that a thread makes of each member."""
        first = [Let(f"begin{self.last}", start)]
        for maker in reversed(range(self.last)):
            rows: list[IndexLike] = [
                its.window.step * Variable(f"begin{its.reader}") + its.window.low
                for its in self.turns.readers(maker)
            ]
            row = most(0, reduce(least, rows))
            turn = self.turns_before(maker, row + 1) - 1
            first.append(Let(f"begin{maker}", self.first_row(maker, turn)))
        return first

    def rings(self, offsets: Mapping[str, int]) -> tuple[Fields, ...]:
        """Return the rings of a thread, all without rows."""
        arena, thread = Member("m", "arena", pointed=True), Variable("thread")
        memory: list[Value] = [
            Address(arena, offsets[f"{self.symbol} ring{inside}"]
                    + self.ring_bytes(inside) * thread)
            for inside in range(self.last)
        ]  # fmt: skip
        return tuple(
            Fields((("at", at), ("base", begin), ("done", begin), ("product", as_index(-1))))
            for inside, at in enumerate((*memory, 0))
            for begin in [Variable(f"begin{inside}")]
        )


def capacities(turns: RowTurns, sizes: Sequence[int], spare: int) -> tuple[int, ...]:
    """Return the rows of each ring; a row has a number of bytes in ``sizes``.

    All have room for the rows that are held at a time, and share ``spare`` bytes. A ring moves the
    rows that its readers leave as often as its spare room is filled. The bytes that move are least
    where this room is as the root of those bytes times all that go through; where readers leave
    no row, none move, and a ring that is not larger than it must be stays in L1.
    """
    left, heights = turns.left(), turns.heights
    weights = [
        size * sqrt(rows * height) for size, rows, height in zip(sizes, left, heights, strict=False)
    ]
    total = sum(weights) or 1.0
    return tuple(
        min(height, held + int(spare * weight / total) // size)
        for height, held, weight, size in zip(heights, turns.held(), weights, sizes, strict=False)
    )


def ring_of(inside: int) -> Element:
    """Return the record of the ring of a member's rows, in functions of members."""
    return Element("r", as_index(inside))
