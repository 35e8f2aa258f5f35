"""A register tile: a plan with one piece chosen for every dimension."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from polysci.loop_ir.index import Variable
from polysci.space.directives import Plain
from polysci.space.padding import Piece
from polysci.space.resolve import Plan


def iterator(dim: str) -> Variable:
    """Return the variable that runs over a dimension: the code's own names end in no digit."""
    return Variable(f"{dim}0")


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: a plan with one piece chosen for every dimension."""

    plan: Plan
    pieces: Mapping[str, Piece]

    def size(self, dim: str) -> int:
        return self.pieces[dim].size

    @property
    def rows(self) -> int:
        return prod(self.size(dim) for dim in self.plan.rows)

    @property
    def width(self) -> int:
        """Columns of the packed panel of B, in elements."""
        return self.plan.columns_padded(self.size(self.plan.column))

    @property
    def panel_width(self) -> int:
        """Elements of a panel of w that one step of the reduction reads, of one shift."""
        return self.rows if self.plan.contraction.swapped else self.width

    @property
    def step(self) -> int:
        """Elements of B that one step of the reduction reads."""
        return self.width * self.plan.kernel.shifts

    @property
    def depth(self) -> int:
        """Reduction steps below one tap."""
        return self.size(self.plan.depth) if self.plan.depth else 1

    def taps_of(self, tap: str) -> int:
        """Values of a tap inside the call."""
        return self.size(tap) if tap in self.pieces else self.plan.extent(tap)

    def tap_stride(self, tap: str) -> int:
        """Elements of packed B from one value of a tap to the next, where none are joined."""
        taps = self.plan.taps
        inner = prod(self.plan.panels[other] for other in taps[taps.index(tap) + 1 :])
        return self.plan.words(self.depth) * self.step * inner

    def panel_strides(self) -> dict[str, int]:
        """Elements of packed w from one position of a dimension to the next."""
        plan = self.plan
        if plan.schedule.has(Plain):
            return dict(plan.coef["B"])
        strides = {d.name: plan.group_size for d in plan.groups}
        for position, dim in enumerate(plan.groups):
            strides[dim.name] *= prod(d.extent for d in plan.groups[position + 1 :])
        strides[plan.panel_dim] = plan.reduction
        if plan.depth:
            strides[plan.depth] = prod(plan.panels[tap] for tap in plan.taps) * self.panel_width
        return strides | {tap: self.tap_stride(tap) for tap in plan.split if tap != plan.depth}

    def tap_of(self, dim: str) -> str | None:
        """The filter dimension that shares an axis of A with ``dim``."""
        index = self.plan.contraction.a.index
        axis = next((affine for affine in index if affine.coef(dim)), None)
        return next((tap for tap in self.plan.taps if axis and axis.coef(tap)), None)

    @property
    def cut(self) -> bool:
        """Whether some rows of some tap may lie in the padding."""
        return bool(self.plan.ranges) or any(piece.masks for piece in self.pieces.values())

    def spread(self, dim: str, valid: int) -> int:
        """Extend a mask over positions of ``dim`` to all rows."""
        if dim not in self.plan.rows:
            return (1 << self.rows) - 1 if valid & 1 else 0
        inner = prod(self.size(d) for d in self.plan.rows[self.plan.rows.index(dim) + 1 :])
        size = self.size(dim)
        return sum((valid >> i // inner % size & 1) << i for i in range(self.rows))

    def masks(self, tap: str | None) -> tuple[int, ...]:
        """Active rows for each value of ``tap``; with None: for every value of every tap."""
        masks = [(1 << self.rows) - 1] * (self.taps_of(tap) if tap else 1)
        for dim, piece in self.pieces.items():
            if piece.masks and self.tap_of(dim) == tap:
                masks = [
                    mask & self.spread(dim, valid)
                    for mask, valid in zip(masks, piece.masks, strict=True)
                ]
        return tuple(masks)
