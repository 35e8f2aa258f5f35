"""``pack(A)`` and ``pack(B)``: copy what the loops inside read of an operand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from polysci.errors import UnsupportedError
from polysci.loop_ir.index import (
    Condition,
    Index,
    Variable,
    as_index,
    every,
    inside,
    iterator,
    least,
    linear,
    thread_share,
)
from polysci.loop_ir.nodes import (
    Address,
    Alternative,
    Assign,
    Buffer,
    Convert,
    Fields,
    If,
    Invoke,
    Let,
    LoopFunction,
    LoopStatement,
    Member,
    Named,
    Point,
    ScalarParameter,
    Unused,
    Value,
    block,
    loop,
    run_threads,
)
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import round_up
from polysci.numerics.dtypes import COMPUTES, DTYPES
from polysci.polyhedral.contraction import Contraction, Strides, columns_of
from polysci.space.directives.ahead import Ahead
from polysci.space.directives.directive import Directive, EntryPoint, Place
from polysci.space.directives.plain import Plain
from polysci.space.directives.swap import Swap
from polysci.target.microkernels import Microkernel

if TYPE_CHECKING:
    from polysci.space.plan import Plan
    from polysci.space.schedule import Schedule

_TEXT = re.compile(r"pack\((?:A\)(?:\+(?P<pad>[0-9]{1,6}))?|(?P<operand>B)\))")


@dataclass(frozen=True, slots=True)
class Pack(Directive):
    """``pack(A)[+pad]``: copy what the loops inside read of A, padding filled as x holds zero.

    ``pad`` elements are added between neighbouring pixels, so that rows do not fall into one
    cache set. ``pack(B)`` copies what they read of a B that changes from call to call into panels.
    """

    pad: int = 0
    operand: str = "A"

    word = "pack"
    place = Place.AMONG
    field_types = MappingProxyType({"pad": int, "operand": str})
    features = ("copied_parts",)

    def __str__(self) -> str:
        return f"pack({self.operand})" + (f"+{self.pad}" if self.pad else "")

    @classmethod
    def forms(cls) -> tuple[str, ...]:
        return "pack(A)[+pad]", "pack(B)"

    @classmethod
    def parse(cls, word: str) -> Self | None:
        match = _TEXT.fullmatch(word)
        return cls(int(match["pad"] or 0), match["operand"] or "A") if match else None

    def repeats(self, other: object) -> bool:
        return isinstance(other, Pack) and self.operand == other.operand

    def fault(self, schedule: Schedule) -> str:
        if self.operand == "B":
            why = _partial_copy_fault(schedule)
            return f"pack(B): {why}" if why else ""
        between = 0 < schedule.pack_depth < len(schedule.parallel)
        return "packing may not stand between parallel loops" if between else ""

    def refusal(
        self, contraction: Contraction, strides: Strides, schedule: Schedule, kernel: Microkernel
    ) -> str:
        if self.operand == "A":
            lies = contraction.a.block > 1 and not COMPUTES[kernel.compute].bytes_of_x
            return "pack(A): x is read by blocks where it lies" * lies
        why = _parts_refusal(contraction, strides[contraction.b.array], schedule, kernel)
        return f"cannot pack parts of B: {why}" if why else ""

    def enter(self, entry: EntryPoint) -> Sequence[LoopStatement]:
        """Return the copy of all of A, which threads share, where it stands outside all loops."""
        plan, box = entry.plan, Named("workspace")
        if self.operand == "B" or plan.schedule.pack_depth:
            return ()
        call = _copy_rows(entry, box, thread_share(_box_rows(plan), entry.threads), ())
        shared = run_threads(entry.threads, [call]) if entry.threads > 1 else call
        return shared, Assign(Member("args", "a"), box)

    def copy_block(self, entry: EntryPoint, origin: Mapping[str, Index]) -> Sequence[LoopStatement]:
        """Return the copy of what the loops inside read, at its place among loops.

        ``origin`` is where what they read starts, by dimension.
        """
        plan, places = entry.plan, [origin[dim] for dim in _origins(entry.plan, self.operand)]
        if self.operand == "B":
            panels = entry.panels(entry.thread)
            call = Invoke(f"{entry.symbol}_pack_b", (Named("packed"), panels, *places))
            return Assign(Member(entry.args, "packed"), panels), call
        assert plan.box
        box = Address(Named("workspace"), plan.box.size * entry.thread, "ps_a")
        call = _copy_rows(entry, box, (0, _box_rows(plan)), places)
        return Assign(Member(entry.args, "a"), box), call

    def functions(self, entry: EntryPoint) -> Sequence[LoopFunction]:
        plan, symbol = entry.plan, entry.symbol
        if self.operand == "B":
            return (_part_function(symbol, plan, entry.strides[plan.contraction.w.array]),)
        return (_box_function(f"{symbol}_pack", plan, entry.strides[plan.contraction.x.array]),)


def _copy_rows(
    entry: EntryPoint, box: Value, rows: Sequence[Value], places: Sequence[Index]
) -> Invoke:
    """Return the call that copies some rows of the box; padding is what x holds for zero."""
    zero = Member("args", "x_zero")
    padding: Value = Convert("ps_a", zero) if entry.plan.precision.integer else 0
    return Invoke(f"{entry.symbol}_pack", (Named("x"), box, padding, *rows, *places))


def _origins(plan: Plan, operand: str) -> list[str]:
    """Return the dimensions of which a copy of A or B is told where its part starts."""
    schedule = plan.schedule
    depth, array = schedule.pack_depth, plan.copied
    if operand == "B":
        depth, array = schedule.panels_depth, plan.contraction.w
    dims = dict.fromkeys(step.dim for step in schedule.loops[:depth])
    return [dim for dim in dims if array.uses(dim)]


def _partial_copy_fault(schedule: Schedule) -> str:
    """Return why no loops can stand around copies of B; empty where they can."""
    if not schedule.panels_depth:
        return "it stands inside a loop; without it, B is copied before all of them"
    if schedule.panels_depth < len(schedule.parallel):
        return "it may not stand between parallel loops"
    other = next((row.word for row in (Swap, Plain, Ahead) if schedule.has(row)), "")
    return f"{other} needs B as a whole" if other else ""


def _parts_refusal(
    contraction: Contraction, strides: Sequence[int], schedule: Schedule, kernel: Microkernel
) -> str:
    """Return why a schedule cannot pack B part by part; empty where it can."""
    if not contraction.packs_b:
        return f"{contraction.b.array} is packed ahead"
    types = {contraction.a.dtype, contraction.b.dtype}
    pairs = types == {"bf16"} and kernel.compute == "bf16"
    if not (types == {"f32"} or pairs) or kernel.family != "brgemm":
        return "only products of f32 do, and words of two bf16"
    column = columns_of(contraction).name
    if pairs and contraction.b.offset(strides).coef(column) != 1:
        return f"steps of {column} lie apart in {contraction.b.array}"
    taps = [d.name for d in contraction.by_role("br") if d.extent > 1]
    if taps and contraction.by_role("k") and not pairs:
        return f"sums run over {', '.join(taps)} beside k"
    part = schedule.tile(contraction.extents, schedule.panels_depth)
    batch = [d.name for d in contraction.by_role("batch") if contraction.b.uses(d.name)]
    whole = [name for name in batch if part[name] > 1]
    return f"a part spans several positions of {', '.join(whole)}" if whole else ""


def _box_rows(plan: Plan) -> int:
    """Rows of the box, the unit in which threads share copying: all but the two fastest axes.

    With all taps of an image in a row of positions, all but the fastest.
    """
    assert plan.box
    inner = 1 if plan.contraction.image else 2
    return prod(plan.box.extents[axis] for axis in plan.box.order[:-inner])


def _box_function(name: str, plan: Plan, strides: tuple[int, ...]) -> LoopFunction:
    """Return ``name(x, box, zero, first, last, origins...)``, which copies rows first..last-1."""
    assert plan.box
    image = plan.contraction.image
    shape, copy = _image_copy(plan, strides) if image else _row_copy(plan, strides)
    parameters: tuple[Buffer | ScalarParameter, ...] = (
        Buffer("x", "ps_x", const=True, restrict=True),
        Buffer("box", "ps_a", restrict=True),
        ScalarParameter("zero", "ps_a"),
        ScalarParameter("first"),
        ScalarParameter("last"),
        *(ScalarParameter(iterator(dim).name) for dim in _origins(plan, "A")),
    )
    words = plan.box.word > 1 or plan.contraction.a.block > 1
    unused = [Unused(("zero",))] if plan.contraction.swapped or words else []
    rows = loop("row", Variable("last"), *copy, start=Variable("first"))
    return LoopFunction(name, parameters, block(shape, *unused, rows))


def _source_row(
    plan: Plan, strides: tuple[int, ...], outer: Sequence[int]
) -> tuple[list[LoopStatement], Condition, Index]:
    """Return where row ``row`` of the box lies on the axes ``outer``.

    That is statements, the condition that x has it, and its offset in x.
    """
    box, a = plan.box, plan.copied
    assert box
    lines: list[LoopStatement] = []
    rest: Index = Variable("row")
    for axis in reversed(outer):
        extent, step = box.extents[axis], box.steps[axis]
        lines.append(Let(f"at{axis}_", _low(plan, axis) + rest % extent * step))
        rest = rest // extent
    places = {str(axis): Variable(f"at{axis}_") for axis in outer}
    real = every([part for axis in outer for part in inside(places[str(axis)], a.shape[axis])])
    return lines, real, linear({str(axis): strides[axis] for axis in outer}, places)


def _shape(kind: str, fields: dict[str, int]) -> Let:
    """The definition of ``shape``, a constant that copies take."""
    return Let("shape", Fields(tuple(fields.items())), kind, static=True)


def _row_copy(plan: Plan, strides: tuple[int, ...]) -> tuple[Let, list[LoopStatement]]:
    """The shape of a row of pixels, and what copies it or gathers a whole image."""
    box, a = plan.box, plan.copied
    assert box
    *outer, middle, fast = box.order
    low = {axis: _low(plan, axis) for axis in (middle, fast)}
    lines, real, source = _source_row(plan, strides, outer)
    source = source + strides[fast] * low[fast]
    fields = {
        "pixels": box.extents[middle],
        "channels": box.extents[fast],
        "step": box.steps[middle],
        "limit": a.shape[middle],
        "box_pixel": box.strides[middle],
        "x_pixel": strides[middle],
        "x_channel": strides[fast] * box.steps[fast],
    }
    if box.panel or box.word > 1:
        panel = box.panel or box.extents[fast]
        fields |= {"panel": panel, "panel_size": box.panel_size}
    pitch = box.strides[outer[-1]] if outer else 0
    count = least(box.extents[fast], a.shape[fast] - low[fast])
    to = Address(Named("box"), Variable("row") * pitch)
    function = "ps_pack_row"
    padding: tuple[Index | Named, ...] = (low[middle], count, Named("zero"))
    if plan.contraction.swapped:
        function, padding = "ps_gather_image", ()
    if box.word > 1:
        function, padding = "ps_pack_pairs", (low[middle], count)
    if plan.contraction.a.block > 1:
        function, padding = "ps_pack_blocks", (low[middle], count)
    start = Alternative(real, Address(Named("x"), source), 0)
    lines += [
        Point(Buffer("from", "ps_x", const=True), start),
        Invoke(function, (to, Named("from"), Named("shape"), *padding)),
    ]
    return _shape("ps_row", fields), lines


def _image_copy(plan: Plan, strides: tuple[int, ...]) -> tuple[Let, list[LoopStatement]]:
    """The shape of an image, and what copies some of its positions, zeros between its rows."""
    box, image = plan.box, plan.contraction.image
    assert box and image
    *outer, along = box.order
    lines, real, source = _source_row(plan, strides, outer)
    fields = {
        "height": image.height,
        "width": image.width,
        "top": image.top,
        "left": image.left,
        "pitch": image.pitch,
        "x_row": strides[-2],
    }
    to = Address(Named("box"), Variable("row") * box.strides[outer[-1]])
    place = (_low(plan, along), box.extents[along])
    copy = Invoke("ps_copy_image", (to, Address(Named("x"), source), Named("shape"), *place))
    lines.append(If(real, block(copy)))
    return _shape("ps_image", fields), lines


def _low(plan: Plan, axis: int) -> Index:
    """Smallest source index of an axis that the tile at the given origins reads."""
    affine = plan.copied.index[axis]
    origins = {dim: iterator(dim) for dim in _origins(plan, "A")}
    return linear({dim: affine.coef(dim) for dim in origins}, origins, affine.const)


def panel_width(plan: Plan, rest: Index) -> Let:
    """Return the definition of a panel's width: of the ``rest`` of columns, in whole vectors."""
    lanes = plan.panel_lanes
    return Let("width", least((rest + (lanes - 1)) // lanes * lanes, _whole_panel(plan)))


def _whole_panel(plan: Plan) -> int:
    """Return the columns of a whole panel, in whole vectors."""
    return round_up(plan.tile[plan.panel_dim], plan.panel_lanes)


def vector_copy(plan: Plan, strides: tuple[int, ...]) -> str:
    """Return the function of ``microkernels/panels.h`` that copies a block by vectors; or nothing.

    It takes floats, and words of two bf16, of which columns or steps of the reduction are
    neighbours.
    """
    apart = plan.joined or plan.stacked or plan.paired or plan.merged > 1
    apart = apart or plan.contraction.swapped or plan.kernel.group > 1
    if not (plan.depth or plan.taps) or apart or plan.panel_lanes == 1:
        return ""
    offset = plan.contraction.w.offset(strides)
    rows = offset.coef(plan.panel_dim) == 1
    turned = bool(plan.depth) and offset.coef(plan.depth or "") == 1
    if plan.compute.name == "bf16" and plan.depth and (rows or turned):
        return "ps_panel_pairs" if rows else "ps_panel_turned_pairs"
    if str(plan.precision) != "f32" or plan.compute.bytes != 4:
        return ""
    if rows:
        return "ps_panel_rows"
    return "ps_panel_turned" if turned else ""


def _part_function(symbol: str, plan: Plan, strides: tuple[int, ...]) -> LoopFunction:
    """Return ``SYMBOL_pack_b(w, panels, origins...)``: the part of B from these origins on.

    Its panels are laid out as those of a B that ends with the part.
    """
    copy = vector_copy(plan, strides)
    if not copy:
        raise UnsupportedError(
            f"schedule {plan.schedule}: pack(B) copies vectors: columns or steps of the reduction "
            f"must be neighbours in {plan.contraction.w.array}"
        )
    part = _PartOfB(plan, plan.contraction.w.offset(strides))
    copies = {
        "ps_panel_rows": part.rows,
        "ps_panel_turned": part.turned,
        "ps_panel_pairs": part.pairs,
    }
    parameters: tuple[Buffer | ScalarParameter, ...] = (
        Buffer("w", DTYPES[plan.contraction.b.dtype].stored, const=True, restrict=True),
        Buffer("panels", "ps_b", restrict=True),
        *(ScalarParameter(iterator(dim).name) for dim in part.origins),
    )
    return LoopFunction(f"{symbol}_pack_b", parameters, block(copies[copy]()))


@dataclass(frozen=True, slots=True)
class _PartOfB:
    """The part of B from the origins of loops on; its copies are loops over what it holds.

    The elements of B lie at this ``offset``.
    """

    plan: Plan
    offset: Affine

    @property
    def origins(self) -> list[str]:
        return _origins(self.plan, "B")

    def rows(self) -> LoopStatement:
        """Return the copy row by row of B, each of which gives every panel a row."""
        plan = self.plan
        *around, deepest = [plan.depth] if plan.depth else plan.taps
        columns = self.count(plan.panel_dim)
        body: LoopStatement = Invoke("ps_part_rows", (
            Named("panels"), self.source(around), self.row(around), self.offset.coef(deepest),
            self.count(deepest), columns, _whole_panel(plan), plan.reduction,
        ))  # fmt: skip
        for tap in reversed(around):
            body = self.loop(tap, 1, body)
        return body

    def pairs(self) -> LoopStatement:
        """Return the copy of two rows of B at a time, which give every panel words, tap by tap."""
        plan = self.plan
        assert plan.depth
        depth, columns = plan.depth, self.count(plan.panel_dim)
        body: LoopStatement = Invoke("ps_part_pair", (
            Named("panels"), self.source([depth, *plan.taps]), self.row(plan.taps),
            self.offset.coef(depth), self.count(depth), _within(depth), columns, _whole_panel(plan),
            plan.reduction,
        ))  # fmt: skip
        for name in reversed(plan.taps):
            body = self.loop(name, 1, body)
        return self.loop(depth, 2, body)

    def turned(self) -> LoopStatement:
        """Return the copy panel by panel, where steps of the reduction are neighbours in B."""
        plan, panel, width = self.plan, self.plan.panel_dim, Variable("width")
        assert plan.depth
        rest = self.count(panel) - _within(panel)
        deep = least(self.count(plan.depth) - _within(plan.depth), plan.tile[plan.depth])
        to = Address(Named("panels"), plan.reduction * _within(panel) + width * _within(plan.depth))
        operands = (
            to,
            self.source([panel, plan.depth]),
            self.offset.coef(panel),
            deep,
            width,
            rest,
        )
        body = self.loop(plan.depth, plan.tile[plan.depth], Invoke("ps_panel_turned", operands))
        return self.loop(panel, plan.tile[panel], block(panel_width(plan, rest), body))

    def row(self, taps: Sequence[str]) -> Index:
        """Return the number of the row of B that loops over ``taps`` have reached."""
        steps = {
            tap: prod(self.plan.panels[t] for t in self.plan.taps[at + 1 :])
            for at, tap in enumerate(taps)
        }
        return linear(steps, {tap: _within(tap) for tap in taps})

    def source(self, looped: Sequence[str]) -> Address:
        """Return the place in B that the loops over ``looped`` dimensions have reached."""
        offset, at = self.offset, dict[str, Index]()
        for dim in dict.fromkeys([*self.origins, *looped]):
            at[dim] = as_index(0)
            if dim in self.origins:
                at[dim] = at[dim] + iterator(dim)
            if dim in looped:
                at[dim] = at[dim] + _within(dim)
        coef = {d.name: offset.coef(d.name) for d in self.plan.contraction.dims}
        return Address(Named("w"), linear(coef, at, offset.const))

    def count(self, dim: str) -> Index:
        """Return the number of positions of a dimension in the part."""
        extent, size = self.plan.extent(dim), self.plan.panels[dim]
        if dim not in self.origins or extent % size == 0:
            return as_index(size)
        return least(extent - iterator(dim), size)

    def loop(self, dim: str, step: int, body: LoopStatement) -> LoopStatement:
        """Return a loop over a dimension of the part."""
        return loop(_within(dim).name, self.count(dim), body, step=step)


def _within(dim: str) -> Variable:
    """Return the variable that counts positions of a dimension inside the part."""
    return Variable(f"{iterator(dim)}_at")
