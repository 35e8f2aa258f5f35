"""Functions that rearrange weights, or all of B in every call, into panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from polysci.loop_ir import interface
from polysci.loop_ir.index import (
    Bits,
    Condition,
    Index,
    IndexLike,
    Mapped,
    Variable,
    as_index,
    compare,
    every,
    iterator,
    least,
    linear,
)
from polysci.loop_ir.nodes import (
    Address,
    Advance,
    Alternative,
    Append,
    Arithmetic,
    Assign,
    Buffer,
    Convert,
    Declare,
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
    Scope,
    Store,
    Team,
    Value,
    block,
    loop,
)
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import ALIGNMENT
from polysci.numerics.dtypes import DTYPES
from polysci.polyhedral.contraction import Dim
from polysci.space.directives.pack import panel_width, vector_copy
from polysci.space.group_views import shift_of
from polysci.space.plan import Plan
from polysci.target.isas import isa_of

FLIP: Final = Variable("PS_FLIP")  # what turns a signed x into the numbers that kernels multiply
# Policies: how much memory packing takes beside the weights of a network.
LARGE = 16 << 20  # bytes of weights that are packed some columns at a time
PIECE = 4 << 20  # about so many bytes at a time


def weights_function(symbol: str, plan: Plan, strides: tuple[int, ...]) -> LoopFunction:
    """Return ``SYMBOL_pack_weights(w, packed)``: KCRS to panels, and of whole numbers the offsets.

    Panels are [group][column panel][k block][taps][words of k][columns][word]; columns beyond the
    extent and what a word lacks are filled with zeros. Those of rotated groups are [column panel]
    [taps][shifts][columns][word], with swapped factors [row panel][k block][k][taps][rows].
    """
    row, panels = interface.function("pack_weights", plan.precision), _Panels(plan, strides)
    if plan.contraction.packs_b:
        return row.define(symbol, block(_plain_copy(plan)))
    body: list[LoopStatement] = []
    if str(plan.precision) != "f32":
        body.append(Point(Buffer("to", "ps_b", restrict=True), Named("packed")))
    body.append(panels.in_groups(panels.columns(0, plan.extent(plan.panel_dim))))
    if plan.precision.integer:
        body += panels.offsets()
    restrict = ("w", "packed") if str(plan.precision) == "f32" else ("w",)
    return row.define(symbol, block(*body), restrict=restrict)


def _plain_copy(plan: Plan) -> LoopStatement:
    """Return the copy of a B that calls pack themselves: they take it as it lies."""
    at = Variable("i")
    to, start = (Address(Named(name), dtype="byte", const=name == "w") for name in ("packed", "w"))
    return loop("i", plan.packed_bytes, Store(to, at, Element(start, at)))


def panel_count(plan: Plan) -> int:
    """Parts of packed B that threads share: blocks of the reduction of every column panel."""
    columns = -(-plan.extent(plan.column) // plan.tile[plan.column])
    return prod(d.extent for d in plan.groups) * columns * _depth_blocks(plan)


def _depth_blocks(plan: Plan) -> int:
    return -(-plan.extent(plan.depth) // plan.tile[plan.depth]) if plan.depth else 1


def panels_function(symbol: str, plan: Plan, strides: tuple[int, ...]) -> LoopFunction:
    """Return ``SYMBOL_pack_b(w, panels, first, last)``: the parts first..last-1 of packed B.

    Where each part starts follows from its number, so that threads may share them.
    """
    blocks, tile = _depth_blocks(plan), plan.tile[plan.column]
    panels, part = -(-plan.extent(plan.column) // tile), Variable("part")
    column = iterator(plan.column)
    lines: list[LoopStatement] = []
    if plan.depth:
        lines.append(Let(iterator(plan.depth).name, part % blocks * plan.tile[plan.depth]))
    lines.append(Let(column.name, part // blocks % panels * tile))
    rest, start, size = part // (blocks * panels), plan.reduction * column, plan.group_size
    for group in reversed(plan.groups):
        lines.append(Let(iterator(group.name).name, rest % group.extent))
        start = start + size * iterator(group.name)
        rest, size = rest // group.extent, size * group.extent
    if plan.depth:
        taps = prod(plan.extent(tap) for tap in plan.taps)
        start = start + taps * (Variable("width") * iterator(plan.depth))
    copy = _Panels(plan, strides)
    width, *inner = copy.panel()
    body = [*lines, width, Point(copy.target, Address(Named("panels"), start)), *inner]
    parameters = (
        Buffer("w", DTYPES[plan.contraction.b.dtype].stored, const=True, restrict=True),
        Buffer("panels", "ps_b"),
        ScalarParameter("first"),
        ScalarParameter("last"),
    )
    parts = loop("part", Variable("last"), *body, start=Variable("first"))
    return LoopFunction(f"{symbol}_pack_b", parameters, block(parts), attributes=("static",))


@dataclass(frozen=True, slots=True)
class _Panels:
    """The panels of w, or of what lies in its memory from column ``origin`` on."""

    plan: Plan
    strides: tuple[int, ...]
    origin: IndexLike = 0

    @property
    def offset(self) -> Affine:
        """The offset in w of its elements."""
        return self.plan.contraction.w.offset(self.strides)

    @property
    def target(self) -> Buffer:
        """The buffer that packing appends to: the parameter of f32, else another name of it."""
        name = "packed" if str(self.plan.precision) == "f32" else "to"
        return Buffer(name, "ps_b", restrict=True)

    @property
    def shift(self) -> Dim | None:
        """The reduction of rotated groups that does not move A."""
        return shift_of(self.plan.contraction)

    @property
    def depth_steps(self) -> tuple[int, int]:
        """Steps of the reduction below the taps that are loops, in all and in one block."""
        plan = self.plan
        assert plan.depth
        whole, step = plan.extent(plan.depth), plan.tile[plan.depth]
        if plan.joined:
            whole = step = whole * plan.extent(plan.joined)
        return whole, step

    def in_groups(self, body: LoopStatement) -> LoopStatement:
        """Return loops over the groups around a statement."""
        for group in reversed(self.plan.groups):
            body = loop(iterator(group.name).name, group.extent, body)
        return body

    def columns(self, first: IndexLike, last: IndexLike) -> LoopStatement:
        """Return the loops over the columns ``first`` to ``last - 1`` of one group."""
        plan = self.plan
        width, *inner = self.panel()
        if plan.depth:
            whole, step = self.depth_steps
            inner = [loop(iterator(plan.depth).name, whole, *inner, step=step)]
        panel, tile = iterator(plan.panel_dim), plan.tile[plan.panel_dim]
        return loop(panel.name, last, width, *inner, start=first, step=tile)

    def panel(self) -> list[LoopStatement]:
        """Return a column panel's width in elements, and what writes a block of its reduction."""
        plan, word = self.plan, self.plan.compute.vnni_factor
        if plan.blocked_weights:
            return self._by_blocks()
        if copy := vector_copy(plan, self.strides):
            return self._by_vectors(copy)
        body: LoopStatement = self._append()
        if word > 1:
            body = loop("e", word, body)
        body = loop("j", Variable("width"), body)
        around = [tap for tap in plan.taps if tap != plan.joined]
        if plan.contraction.swapped:  # taps of a channel follow each other
            body = self._tap_loops(around, body)
            around = []
        if plan.depth:
            body = loop("i", Variable("deep"), body, step=word)
        if self.shift:
            body = loop("d", plan.kernel.shifts, body)
        return [*self._sizes(), self._tap_loops(around, body)]

    def _by_vectors(self, copy: str) -> list[LoopStatement]:
        """Return the statements of ``panel`` by a function that copies vectors."""
        plan, to = self.plan, self.target.name
        column, width = iterator(plan.panel_dim), Variable("width")
        taps, deepest = plan.taps, plan.depth or ""
        deep: Index = Variable("deep")
        if not plan.depth:  # the innermost reduction instead
            *around, deepest = plan.taps
            taps, deep = tuple(around), as_index(plan.extent(deepest))
        along = plan.panel_dim if "turned" in copy else deepest
        depth = iterator(plan.depth) if plan.depth else 0
        start, _ = self._weight(column - self.origin, depth, taps)
        real = plan.extent(plan.panel_dim) - column
        whole = (Variable("deep") + 1) // 2 * 2 if copy.endswith("pairs") else deep
        operands = (Named(to), Address(Named("w"), start), self.offset.coef(along), deep, width)
        body = block(Invoke(copy, (*operands, real)), Advance(to, whole * width))
        return [*self._sizes(), self._tap_loops(taps, body)]

    def _by_blocks(self) -> list[LoopStatement]:
        """Return the statements of ``panel`` where elements of w are blocks of numbers."""
        plan, to, item = self.plan, self.target.name, self.plan.packed_item
        column, width, blocks = iterator(plan.panel_dim), Variable("width"), Variable("i")
        depth = iterator(plan.depth) + blocks if plan.depth else blocks
        place, _ = self._weight(column - self.origin, depth, ())
        start = Address(Named("w"), item * place)
        apart, block = item * self.offset.coef(plan.panel_dim), plan.contraction.a.block
        real = plan.extent(plan.panel_dim) - column
        pack = Invoke("ps_pack_block", (Named(to), start, apart, block, width, real))
        count = Variable("deep") if plan.depth else as_index(1)
        return [*self._sizes(), loop("i", count, pack, Advance(to, item * width))]

    def _append(self) -> Append:
        """Return the statement that writes the weight of column j and step i, or 0."""
        plan, to, stacked = self.plan, self.target.name, self.plan.stacked
        word, j, e = plan.compute.vnni_factor, Variable("j"), Variable("e")
        inside = Variable("i") if word == 1 or stacked else Variable("i") + e
        below: Index = inside if plan.depth is None else iterator(plan.depth) + inside
        if self.shift:
            return self._append_shifted(self.shift)
        column = Mapped("ps_column_at", (j, Variable("width"))) if plan.paired else j
        at = iterator(plan.panel_dim) + column
        taps = [tap for tap in plan.taps if tap != plan.joined]
        place, real = self._weight(at - self.origin, below, taps, plan.joined, stacked)
        real = [compare(at, "<", plan.extent(plan.panel_dim)), *real]
        if stacked:
            real.append(compare(iterator(stacked) + e, "<", plan.extent(stacked)))
        elif word > 1:
            deep = Variable("deep")
            real.append(compare(inside, "<", deep) if plan.depth else compare(e, "==", 0))
        weight: Value = Element("w", place)
        if to == "to":
            weight = RoutineResult("ps_b_of", (weight,))
        return Append(to, Alternative(every(real), weight, 0))

    def _append_shifted(self, shift: Dim) -> Append:
        """Return the statement that writes element e of column j of shift d, or 0.

        In each lane are as many channels of A as a word has, or one; there is a vector of columns
        for each of these (``microkernels/grouped.h``).
        """
        plan, to = self.plan, self.target.name
        j, d, e = map(Variable, ("j", "d", "e"))
        lanes, word = plan.kernel.lanes, plan.kernel.in_lane
        first: Index = iterator(plan.panel_dim)
        real = list[Condition]()
        if word == 1:
            channel: Index = first + j
            column: Index = Bits("^", channel, d)
            if plan.compute.vnni_factor > 1:
                real.append(compare(e, "==", 0))
        else:
            vector, lane = j // lanes, j % lanes
            first = first + vector // word * (lanes * word)
            channel = first + lane * word + e
            column = first + Bits("^", lane, d) * word + vector % word
        real.append(compare(channel, "<", plan.extent(plan.panel_dim)))
        weight: Value = Element("w", self._weight_of(column - self.origin, channel, shift))
        if to == "to":
            weight = RoutineResult("ps_b_of", (weight,))
        return Append(to, Alternative(every(real), weight, 0))

    def _weight_of(self, column: Index, channel: Index, shift: Dim) -> Index:
        """Return the place in w of what a column of rotated groups has for one of its channels."""
        plan, offset = self.plan, self.offset
        at = {tap: iterator(tap) for tap in plan.taps}
        place = linear({tap: offset.coef(tap) for tap in at}, at, offset.const)
        place = place + offset.coef(plan.column) * column
        return place + offset.coef(shift.name) * (channel % shift.extent)

    def _weight(
        self,
        column: IndexLike,
        depth: IndexLike,
        taps: Sequence[str],
        joined: str | None = None,
        stacked: str | None = None,
    ) -> tuple[Index, list[Condition]]:
        """Return the place of one weight in w, and what must hold for it to exist.

        ``taps`` are those that loops around it count. With a ``joined`` tap ``depth`` counts on
        from each of its values to the next; of a ``stacked`` one it is that of element e of a word.
        """
        plan, offset, depth = self.plan, self.offset, as_index(depth)
        around = [*(d.name for d in plan.groups), *taps]
        at: dict[str, IndexLike] = {dim: iterator(dim) for dim in around}
        if stacked:
            at[stacked] = at[stacked] + Variable("e")
        place = linear({dim: offset.coef(dim) for dim in around}, at, offset.const)
        place = place + offset.coef(plan.panel_dim) * as_index(column)
        if plan.depth is None:
            return place, []
        if joined:
            whole = plan.extent(plan.depth)
            place = place + offset.coef(joined) * (depth // whole)
            depth = depth % whole
        if plan.merged == 1:
            return place + offset.coef(plan.depth) * depth, []
        # Zeros where a column meets another group's depth.
        columns, deep = (plan.extent(dim) // plan.merged for dim in (plan.column, plan.depth))
        real = compare(as_index(column) // columns, "==", depth // deep)
        return place + offset.coef(plan.depth) * (depth % deep), [real]

    def _sizes(self) -> list[LoopStatement]:
        """Return the definitions of a panel's width and of the depth of its block."""
        plan, panel = self.plan, self.plan.panel_dim
        parts: list[LoopStatement] = [panel_width(plan, plan.extent(panel) - iterator(panel))]
        if plan.depth:
            whole, step = self.depth_steps
            parts.append(Let("deep", least(whole - iterator(plan.depth), step)))
        return parts

    def _tap_loops(self, taps: Sequence[str], body: LoopStatement) -> LoopStatement:
        for tap in reversed(taps):
            step = self.plan.compute.vnni_factor if tap == self.plan.stacked else 1
            body = loop(iterator(tap).name, self.plan.extent(tap), body, step=step)
        return body

    def offsets(self) -> list[LoopStatement]:
        """Return statements that write what x_zero adds to each channel's sums, and x_zero."""
        plan, column = self.plan, iterator(self.plan.column)
        real = list[Condition]()
        if self.shift:
            place = self._weight_of(column, Bits("^", column, Variable("d")), self.shift)
        else:
            depth = iterator(plan.depth) if plan.depth else 0
            place, real = self._weight(column, depth, plan.taps)
        # The other way round, gcc warns of a sign.
        unsigned = Convert("uint32", Element("w", place))
        body: LoopStatement = Assign("sum", Arithmetic("+", unsigned, Named("sum")))
        if real:
            body = If(every(real), block(body))
        if plan.depth:
            body = loop(iterator(plan.depth).name, plan.extent(plan.depth), body)
        if self.shift:
            body = loop("d", self.shift.extent, body)
        for tap in reversed(plan.taps):
            body = loop(iterator(tap).name, plan.extent(tap), body)
        looped = {plan.column, *(group.name for group in plan.groups)}  # others have one position
        terms = {dim: at for dim, at in plan.channel.terms if dim in looped} | dict(plan.batches)
        place = linear(terms, {dim: iterator(dim) for dim in terms})
        zero = Convert("uint32", Variable("x_zero") + FLIP)
        negated = Convert("int32", Arithmetic("-", 0, Arithmetic("*", zero, Named("sum"))))
        body = block(Let("sum", 0, "uint32", const=False), body, Store("offset", place, negated))
        body = self.in_groups(loop(column.name, plan.extent(plan.column), body))
        behind = Address(Named("packed"), as_index(plan.offsets_at), "byte")
        return [
            *clear_bytes(plan.compute.bytes * plan.packed_size, plan.offsets_at),
            Point(Buffer("offset", "int32", restrict=True), Address(behind, dtype="int32")),
            body,
            Store("offset", as_index(plan.offsets), Named("x_zero")),
        ]


def clear_bytes(first: int, last: int) -> list[LoopStatement]:
    """Return statements that write zeros to bytes of packed memory which no call reads."""
    zero = Store(Address(Named("packed"), dtype="byte"), Variable("i"), 0)
    return [loop("i", last, zero, start=first)] if first < last else []


def integer_arguments(plan: Plan) -> list[LoopStatement]:
    """Return the statements of an entry that take what integers need: offsets, zero, scales."""
    if not plan.precision.integer:
        return []
    behind = Address(Named("packed"), as_index(plan.offsets_at), "byte", const=True)
    offset = Member("args", "offset")
    lines: list[LoopStatement] = [
        Assign(offset, Address(behind, dtype="int32", const=True)),
        Assign(Member("args", "x_zero"), Element(offset, as_index(plan.offsets))),
    ]
    if plan.precision.scaled:
        lines += [Assign(Member("args", "to"), Named("to")), *_limits(plan)]
    return lines


def _limits(plan: Plan) -> list[LoopStatement]:
    """Return the statements that find the clamp of 8-bit results: devices clamp in any case."""
    if isa_of(plan.kernel.isa).language != "c":
        return []
    limits = RoutineResult("ps_limits", (*map(Named, ("limits", "clamp", "to")), plan.channels))
    return [
        Declare(Buffer("limits", "float32", as_index(2), Scope.STACK)),
        Assign(Member("args", "clamp"), limits),
    ]


def columns_at_a_time(plan: Plan, strides: tuple[int, ...], team: Team) -> tuple[int, int] | None:
    """Return the elements of a column and how many columns of large weights are packed at a time.

    That is for networks, so that weights need not be in memory as a whole. The elements of a column
    lie side by side, column after column, and so many columns fill whole lines. None for others.
    """
    w, columns = plan.contraction.w, plan.extent(plan.panel_dim)
    whole, tile = prod(w.shape), plan.tile[plan.panel_dim]
    offset = w.offset(strides)
    refused = (
        team is Team.OWN
        or plan.contraction.packs_b
        or plan.contraction.swapped
        or plan.precision.integer
        or plan.blocked_weights
    )
    if refused or plan.groups or plan.merged > 1 or shift_of(plan.contraction) or offset.const:
        return None
    row = whole // columns
    step = tile * max(1, PIECE // (tile * row * w.bytes))
    apart = offset.coef(plan.panel_dim) == row and step * row * w.bytes % ALIGNMENT == 0
    return (row, step) if apart and whole * w.bytes >= LARGE else None


def columns_function(symbol: str, plan: Plan, strides: tuple[int, ...]) -> LoopFunction:
    """Return ``SYMBOL_pack_columns(w, panels, first, last)``, which packs columns first..last-1.

    ``w`` begins with column ``first``, which is the first one of a panel.
    """
    first, last = Variable("first"), Variable("last")
    panels = _Panels(plan, strides, first)
    start = Address(Address(Named("panels"), dtype="ps_b"), plan.reduction * first)
    body = block(Point(panels.target, start), panels.columns(first, last))
    return interface.columns_function(plan.precision).define(symbol, body)
