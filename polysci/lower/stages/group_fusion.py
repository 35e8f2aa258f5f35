"""A row fusion as one kernel of groups: a group makes a block of rows of the last member.

It makes the rows of each member in turn, with a barrier behind them: what the next one reads lies
in the memory of the group. Elements of loops are shared out among its work-items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from polysci.loop_ir.index import Variable, Within, as_index, compare
from polysci.loop_ir.microkernels import Unit
from polysci.loop_ir.nodes import (
    Barrier,
    Block,
    Buffer,
    Declare,
    For,
    If,
    Let,
    LoopFunction,
    LoopKind,
    LoopStatement,
    Point,
    Scope,
    Scoped,
    Unused,
    Value,
    block,
    loop,
)
from polysci.lower.layer_calls import LayerCall, strides_of
from polysci.lower.lowering import unit_of
from polysci.lower.mapped.algorithm import MappedGroups
from polysci.lower.mapped.held import (
    BLOCK,
    ITEMS,
    LINE,
    HeldNest,
    Residual,
    digits,
    start_of,
)
from polysci.lower.mapped.legality import check_groups
from polysci.lower.stages.access import MemoryAccess
from polysci.lower.stages.accumulators import Statements
from polysci.lower.stages.loops import MEMORY, LoopLowering
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.held_rows import HeldRows, held_elements, hold_rows, memory_of
from polysci.program.passes.operands import images_of, row_dim
from polysci.program.stages import RowFusion

FIELDS = ("x", "packed", "y", "bias", "residual", "clamp", "to")  # of layers, that kernels take
ROW: Final = Variable("row")  # of a tensor, that an item makes a part of


@dataclass(frozen=True, slots=True)
class GroupFusionLowering:
    """A row fusion on its way to loop IR; ``calls`` have the code of its layers."""

    stage: RowFusion
    placed: PlacedProgram
    calls: Mapping[int, LayerCall]
    symbol: str

    @property
    def rows(self) -> tuple[HeldRows, ...]:
        """The rows of every member that a group makes."""
        return hold_rows(self.placed, self.stage.members, self.stage.height)

    @property
    def held(self) -> dict[str, HeldRows]:
        """Those of the tensors between members, by name."""
        return dict(zip(self.stage.internal, self.rows, strict=False))

    @property
    def memories(self) -> dict[str, tuple[str, int]]:
        """The element types and extents of what a group has for rows, by name."""
        return {memory_of(kind): (kind, size) for kind, size in held_elements(self.rows).items()}

    def unit(self, inside: int) -> Unit | None:
        """Return the element types and vectors of a layer's microkernels; of a loop nothing."""
        call = self.calls.get(inside)
        return unit_of(call.source.header_set) if call else None

    def layer(self, inside: int, operands: Mapping[str, Value]) -> Block:
        """Return what an item does of a layer; ``operands`` are those of its code's call."""
        call, made = self.calls[inside], self.rows[inside]
        layer, strides = call.layer, strides_of(call.layer, self.placed)
        plan = MappedGroups().resolve(layer.problem, call.schedule, 1)
        plan = replace(plan, strides={**plan.strides, **strides})
        places, source = self.placed.places, self.held.get(layer.x.tensor)
        if source:
            source = source.shift(layer.x.first(places[layer.x.tensor].strides))
        first = layer.y.first(places[layer.output].strides)
        rows, added = self.placed.rows_of(layer.output), self.held.get(layer.residual)
        assert rows is not None
        residual = Residual(added.shift(first) if added else None) if layer.residual else None
        images = images_of(layer, rows)
        nest = HeldNest(plan, row_dim(layer, rows), made.shift(first), source, residual, images)
        return block(*self.pointers(inside, operands), *nest.statements())

    def pointers(self, inside: int, operands: Mapping[str, Value]) -> Statements:
        """Return the definitions of the operands of a layer; 0 for what the group holds."""
        call, lines = self.calls[inside], Statements()
        layer = call.layer
        tensors = {"x": layer.x.tensor, "y": layer.output, "residual": layer.residual}
        held = {name: tensor in self.held for name, tensor in tensors.items()}
        (run,) = (row for row in call.source.functions if row.role == "run")
        for parameter in run.parameters:
            if parameter.name in FIELDS:
                assert isinstance(parameter, Buffer)
                operand = 0 if held.get(parameter.name) else operands[parameter.name]
                lines.append(Point(parameter, operand))  # type: ignore[arg-type]
        return lines

    def loop(self, inside: int, lowering: LoopLowering) -> Block:
        """Return what an item does of a loop: every so-many-th element of the rows."""
        made = self.rows[inside]
        others = [(name, extent) for name, extent in lowering.order if name not in lowering.rows]
        extents = [(ROW.name, made.count), *others]
        total, number = prod(extent for _, extent in extents), Variable("number")
        self.keep(lowering, made)
        defined = [
            it for it in lowering.pointer_definitions()
            if not isinstance(it, Unused)
            and not (isinstance(it, Point) and it.buffer.name in self.memories)
        ]  # fmt: skip
        at = digits(extents, number)
        line = at.pop(ROW.name)
        at |= digits([(name, lowering.extents[name]) for name in lowering.rows], ROW)
        element: Statements = [
            *(Let(name, digit) for name, digit in at.items()), *lowering.body([])
        ]  # fmt: skip
        if not made.inside:
            element = [If(Within(ROW, made.extent), block(*element))]
        element = [Let(LINE.name, line), Let(ROW.name, start_of(made) + LINE), *element]
        if total % ITEMS:
            element = [If(compare(number, "<", total), block(*element))]
        first = Let("number", Variable("turn") * ITEMS + Variable("at"))
        return block(*defined, loop("turn", -(-total // ITEMS), first, *element))

    def keep(self, lowering: LoopLowering, made: HeldRows) -> None:
        """Let a loop read and write rows that the group holds."""
        for tensor, rows in self.held.items():
            if tensor in lowering.places:
                lowering.buffers[lowering.places[tensor].buffer] = rows.memory
        for load, access in lowering.accesses.items():
            lowering.accesses[load] = self.held_access(load.tensor, access, lowering.rows, made)
        lowering.outs = [
            self.held_access(load.tensor, access, lowering.rows, made)
            for load, access in zip(lowering.targets, lowering.outs, strict=True)
        ]

    def held_access(
        self, tensor: str, access: MemoryAccess, rows: Sequence[str], made: HeldRows
    ) -> MemoryAccess:
        """Return an access as one to the memory of the group, if that holds the tensor."""
        held = self.held.get(tensor)
        if held is None or held.place is None:
            return access
        terms = {name: step for name, step in access.terms.items() if name not in rows}
        step = access.terms.get(rows[-1], 0)
        const = access.const + step * made.first - held.size * held.first + held.place
        return replace(access, terms={**terms, LINE.name: step}, const=const)

    def function(self, members: Mapping[int, Block]) -> LoopFunction:
        """Return the function that launches all groups; ``members`` are what an item does.

        Raises IllegalScheduleError where a barrier lacks.
        """
        item, rows = Statements(), self.rows
        for inside in range(len(members)):
            item += [*([Barrier()] if inside else []), Scoped(members[inside], self.unit(inside))]
        items = For("at", as_index(0), as_index(ITEMS), block(*item), kind=LoopKind.ITEMS)
        turns: list[LoopStatement] = [
            *(Declare(Buffer(name, kind, as_index(extent), Scope.LOCAL))
              for name, (kind, extent) in self.memories.items()),
            items,
        ]  # fmt: skip
        blocks = as_index(rows[-1].blocks)
        groups = For(BLOCK.name, as_index(0), blocks, block(*turns), kind=LoopKind.PARALLEL)
        check_groups(groups)
        return LoopFunction(self.symbol, (MEMORY,), block(groups), attributes=("static",))
