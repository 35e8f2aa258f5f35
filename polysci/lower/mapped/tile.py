"""The parts of a group's tile: a work-item has one of its own, or a warp has one together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from polysci.loop_ir.index import Index, Variable
from polysci.loop_ir.nodes import Address, Invoke, Let, Named, Value
from polysci.lower.mapped.plan import MappedPlan


class ItemTile(Protocol):
    """The part of the sums of a group's tile that a work-item, number ``at``, holds."""

    @property
    def rows(self) -> int:
        """Rows whose sums an item holds."""

    @property
    def vectors(self) -> int:
        """Vectors of columns whose sums an item holds, of every row."""

    @property
    def lanes(self) -> int:
        """Columns of a vector."""

    @property
    def rows_apart(self) -> int:
        """Rows from one of the item's to the next."""

    @property
    def vectors_apart(self) -> int:
        """Columns from one of the item's vectors to the next."""

    def origin(self) -> list[Let]:
        """Return the definitions of what the item's part is found by."""

    def first(self) -> tuple[Index, Index]:
        """Return the first row and the first column of an item in the tile."""

    def sums(self, stage: Index) -> Invoke:
        """Return the products of a step that lies at a stage of the group's memory."""


@dataclass(frozen=True, slots=True)
class OwnTile:
    """Rows that are neighbours, and vectors of columns that alternate with those of others."""

    plan: MappedPlan

    @property
    def rows(self) -> int:
        return self.plan.kernel.rows

    @property
    def vectors(self) -> int:
        return self.plan.kernel.vecs

    @property
    def lanes(self) -> int:
        return self.plan.kernel.lanes

    @property
    def rows_apart(self) -> int:
        return self.plan.row_step

    @property
    def vectors_apart(self) -> int:
        return self.plan.tile_columns * self.lanes

    def origin(self) -> list[Let]:
        at, across, tall = Variable("at"), self.plan.tile_columns, self.plan.tile_rows
        row, column = at // across * self.rows, at % across * self.lanes
        if self.plan.along_rows:
            row, column = at % tall, at // tall * self.lanes
        return [Let("own_row", row), Let("own_column", column)]

    def first(self) -> tuple[Index, Index]:
        return Variable("own_row"), Variable("own_column")

    def sums(self, stage: Index) -> Invoke:
        plan = self.plan
        factors = (
            Address(Named(lines.name), stage * lines.size + Variable(own) * lines.word)
            for lines, own in ((plan.lines_of_a, "own_row"), (plan.lines_of_b, "own_column"))
        )
        lengths = (plan.lines_of_a.length, plan.lines_of_b.length)
        operands: tuple[Value, ...] = (
            Named("acc"), Named("t"), *factors, plan.depth // plan.word, *lengths,
            self.vectors_apart,
        )  # fmt: skip
        return Invoke("ps_run_words" if plan.word > 1 else "ps_run_lines", operands)


@dataclass(frozen=True, slots=True)
class WarpTile:
    """Pairs of columns in every eighth row and column of a warp's tile (PTX ISA, mma.m16n8k16)."""

    plan: MappedPlan

    @property
    def rows(self) -> int:
        return self.plan.kernel.rows // self.rows_apart

    @property
    def vectors(self) -> int:
        return self.plan.kernel.cols // self.vectors_apart

    @property
    def lanes(self) -> int:
        return 2

    @property
    def rows_apart(self) -> int:
        return 8

    @property
    def vectors_apart(self) -> int:
        return 8

    def origin(self) -> list[Let]:
        kernel, across = self.plan.kernel, self.plan.tile_columns
        warp = Variable("at") // kernel.items
        return [
            Let("lane", Variable("at") % kernel.items),
            Let("own_row", warp // across * kernel.rows),
            Let("own_column", warp % across * kernel.cols),
        ]

    def first(self) -> tuple[Index, Index]:
        row = Variable("own_row") + Variable("lane") // 4
        return row, Variable("own_column") + Variable("lane") % 4 * self.lanes

    def sums(self, stage: Index) -> Invoke:
        a, b = self.plan.lines_of_a, self.plan.lines_of_b
        if self.plan.by_columns:
            return self._sums_of_words(stage)
        operands: tuple[Value, ...] = (
            Named("acc"), Named("t"),
            Address(Named(a.name), stage * a.size + Variable("own_row") * a.length),
            Address(Named(b.name), stage * b.size), self.plan.depth, a.length, b.length, a.chunks,
            b.chunks, Variable("own_column"), Variable("lane"),
        )  # fmt: skip
        return Invoke("ps_run_warp", operands)

    def _sums_of_words(self, stage: Index) -> Invoke:
        """Return the products of 8-bit numbers: B lies in lines of a column's steps."""
        a, b = self.plan.lines_of_a, self.plan.lines_of_b
        factors = (
            Address(Named(lines.name), stage * lines.size + Variable(own) * lines.length)
            for lines, own in ((a, "own_row"), (b, "own_column"))
        )
        operands: tuple[Value, ...] = (
            Named("acc"), Named("t"), *factors, self.plan.depth, a.length, b.length, a.chunks,
            b.chunks, Variable("lane"),
        )  # fmt: skip
        return Invoke("ps_run_warp_words", operands)


def tile_of(plan: MappedPlan) -> ItemTile:
    """Return what work-items compute under a plan."""
    return WarpTile(plan) if plan.of_warps else OwnTile(plan)
