"""Tiles of groups whose work-items read both factors themselves, through the caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from polysci.loop_ir.index import (
    TRUE,
    Condition,
    Index,
    Variable,
    Within,
    as_index,
    choose,
    every,
    iterator,
    linear,
)
from polysci.loop_ir.nodes import (
    Address,
    Buffer,
    Declare,
    Invoke,
    Let,
    LoopStatement,
    Named,
    Scope,
    Store,
    Value,
    loop,
)
from polysci.lower.mapped.nest import NARROW, GroupNest, place_at
from polysci.polyhedral.contraction import Dim

NOWHERE: Final = -1  # the place of a row that is not real in a step


@dataclass(frozen=True, slots=True)
class ReadingNest(GroupNest):
    """The statements of a plan without copies: reductions are loops around short steps."""

    @property
    def row_share(self) -> int:
        """Rows whose places an item keeps: its own ones."""
        return self.plan.kernel.rows

    def row_element(self) -> list[LoopStatement]:
        """Return the definition of the item's row ``i`` in the tile."""
        return [Let("own", Variable("own_row") + Variable("i") * self.plan.row_step)]

    def kind_of_place(self, name: str) -> str:
        """Return the type of a row's places: those in x are an operand of kernels."""
        return "ps_place" if name == "x_at" else NARROW

    @property
    def deep(self) -> Dim:
        """The dimension of the steps."""
        return self.plan.deep[-1]

    @property
    def moves(self) -> bool:
        """Return whether which rows are real, and thus where, changes from step to step."""
        return bool(self._conditions())

    def reduction(self) -> list[LoopStatement]:
        """Return all steps inside loops over the other reductions; the last step may be short."""
        plan, name = self.plan, iterator(self.deep.name).name
        whole, rest = (part := self.deep.extent // plan.depth * plan.depth), self.deep.extent - part
        within = plan.guards_steps
        steps = list[LoopStatement]()
        if whole:
            steps.append(loop(name, whole, *self._step(plan.depth), step=plan.depth))
        if rest:
            steps += [Let(name, as_index(whole)), *self._step(rest)]
        nest = [*([] if within else self._places()), *steps]
        for dim in reversed(plan.around):
            nest = [loop(iterator(dim.name).name, dim.extent, *nest)]
        declared = Declare(Buffer("now", "ps_place", as_index(plan.kernel.rows), Scope.STACK))
        return [*([declared] if self.moves else []), *nest]

    def _step(self, depth: int) -> list[LoopStatement]:
        """Return a step of so many products."""
        return [*(self._places() if self.plan.guards_steps else []), self._products(depth)]

    @property
    def _outside(self) -> tuple[Dim, ...]:
        """The dimensions on which the places of rows depend, beside the rows' own."""
        return (*self.plan.around, *(self.plan.deep if self.plan.guards_steps else ()))

    def _conditions(self) -> list[Condition]:
        """Return what makes the item's row ``i`` real."""
        i, at = Variable("i"), self.at(self._outside)
        conditions = self.tail("row", self.plan.rows, self.plan.row_count)
        for name, (subscript, size) in self.plan.guarded.items():
            conditions.append(Within(place_at(name, i) + linear(dict(subscript.terms), at), size))
        return conditions

    def _places(self) -> list[LoopStatement]:
        """Return the places of the item's rows now; nothing where each is always real."""
        i = Variable("i")
        real = every(conditions) if (conditions := self._conditions()) else TRUE
        if real == TRUE:
            return []
        moved = linear(dict(self.offset_of_x.terms), self.at(self._outside))
        place = choose(real, place_at("x_at", i) + moved, NOWHERE)
        return [loop("i", self.plan.kernel.rows, *self.row_element(), Store("now", i, place))]

    def _products(self, depth: int) -> Invoke:
        """Return the call that adds the products of a step."""
        plan, x = self.plan, self.offset_of_x
        if plan.word > 1:
            return self._products_of_words(depth)
        column = Variable("column") + Variable("own_column")
        apart = plan.tile_columns * plan.kernel.lanes
        ragged = plan.column.extent % plan.columns and (plan.contraction.packs_b or plan.channels)
        limit = plan.column.extent - column if ragged else as_index(plan.columns)
        source, sides = self._source(), list[Value]([as_index(x.coef(self.deep.name))])
        if plan.channels:
            sides.append(as_index(x.coef(plan.column.name)))
            source = source + column * x.coef(plan.column.name)
        panel, of_b = self._panel(column)
        operands = (
            Named("acc"), Named("t"), Address(Named("x"), source),
            self._places_now(), *sides, Address(Named("weights"), panel),
            *of_b, depth, limit, apart,
        )  # fmt: skip
        return Invoke("ps_read_channels" if plan.channels else "ps_read_rows", operands)

    def _products_of_words(self, depth: int) -> Invoke:
        """Return the same of words of neighbouring steps; where a row is not real x holds its 0."""
        plan, column = self.plan, Variable("column") + Variable("own_column")
        wide, along = plan.padded_columns, as_index(self.offset_of_x.coef(self.deep.name))
        line = self._line_of_weights(iterator(self.deep.name) + as_index(0))
        operands = (
            Named("acc"), Named("t"), Address(Named("x"), self._source()), self._places_now(),
            along, int(self.vectors == plan.word), self.zero,
            Address(Named("weights"), line * wide + column * plan.word), as_index(wide), depth,
            plan.tile_columns * plan.kernel.lanes,
        )  # fmt: skip
        return Invoke("ps_read_words", operands)

    def _source(self) -> Index:
        """Return how far behind the places of its rows a step begins."""
        plan = self.plan
        outside = () if self.moves else plan.around
        inner = () if plan.guards_steps and self.moves else plan.deep
        return linear(dict(self.offset_of_x.terms), self.at((*outside, *inner)))

    def _places_now(self) -> Named:
        return Named("now" if self.moves else "x_at")

    def _panel(self, column: Index) -> tuple[Index, Sequence[Value]]:
        """Return where the factors of a step lie in B, and how far apart steps and columns are.

        Columns of packed weights are 0 apart: they lie in panels.
        """
        plan = self.plan
        dims = (*plan.batches, *plan.around, *plan.deep)
        if plan.contraction.packs_b:
            offset = plan.contraction.w.offset(plan.strides[plan.contraction.w.array])
            at = {**self.at(dims), plan.column.name: column}
            apart = (offset.coef(self.deep.name), offset.coef(plan.column.name))
            return linear(dict(offset.terms), at, offset.const), [*map(as_index, apart)]
        line = self._line_of_weights(iterator(self.deep.name) + as_index(0))
        wide = plan.padded_columns
        return line * wide + column, [as_index(wide), as_index(0)]
