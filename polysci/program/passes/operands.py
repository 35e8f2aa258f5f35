"""How the operands of a layer's problem lie in memory, and which rows a stage reads for a row.

The contraction of a problem answers, whichever operator it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from polysci.loop_ir.expressions import Load, Reduce
from polysci.numerics.affine import Affine
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.program.passes.relations import iterators, reads_within, uses
from polysci.program.stages import ROW_AXIS, LayerStage, LoopStage, Window

ROW_ITERATOR: Final = f"i{ROW_AXIS}"


@dataclass(frozen=True, slots=True)
class StoredOperand:
    """An array of a problem's nest: extents, and strides in elements as it is stored."""

    array: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """Axes from the slowest to the fastest; of equal strides an extent of 1 is the faster."""
        axes = range(len(self.shape))
        return tuple(sorted(axes, key=lambda at: (-self.strides[at], self.shape[at] == 1)))

    @property
    def fastest(self) -> int:
        """The axis whose elements are neighbours in memory."""
        return self.order[-1]


@lru_cache(maxsize=256)
def operands_of(problem: Problem) -> tuple[StoredOperand, StoredOperand, StoredOperand]:
    """x, w and y of a problem."""
    _, roles, strides = model_of(problem)
    x, w, y = (
        StoredOperand(operand.array, operand.shape, tuple(strides[operand.array]))
        for operand in (roles.a, roles.b, roles.out)
    )
    return x, w, y


@dataclass(frozen=True, slots=True)
class RowWindow:
    """Rows of a tensor that row p of the next one reads: p * step + low to p * step + high."""

    step: int
    low: int
    high: int
    extent: int  # rows of the tensor


def row_window(
    at: Affine, row: str, extents: Mapping[str, int | None], height: int
) -> RowWindow | None:
    """The window of a subscript; None where another iterator than ``row`` has no extent."""
    step = at.coef(row)
    if step < 1:
        return None
    ends = []
    for name, coef in at.terms:
        extent = extents.get(name)
        if name != row and extent is None:
            return None
        ends += [coef * ((extent or 1) - 1)] if name != row else []
    low = at.const + sum(min(0, end) for end in ends)
    high = at.const + sum(max(0, end) for end in ends)
    return RowWindow(step, low, high, height)


def row_dim(layer: LayerStage) -> str:
    """The loop over rows of a layer's result; empty where no loop walks them one by one."""
    _, roles, _ = model_of(layer.problem)
    axis = _row_axis(layer.y)
    subscript = None if axis is None else roles.out.index[axis]
    if subscript is None or subscript.const or [coef for _, coef in subscript.terms] != [1]:
        return ""
    return subscript.terms[0][0]


def layer_rows(layer: LayerStage) -> RowWindow | None:
    """The rows of x that a row of a layer's result reads; None where these are no window."""
    _, roles, _ = model_of(layer.problem)
    axis, row = _row_axis(layer.x), row_dim(layer)
    if axis is None or not row:
        return None
    extents = {dim.name: dim.extent for dim in roles.dims}
    return row_window(roles.a.index[axis], row, extents, roles.a.shape[axis])


def _row_axis(window: Window) -> int | None:
    """The axis of a problem that is the rows of a tensor."""
    return window.axes.index((ROW_AXIS,)) if (ROW_AXIS,) in window.axes else None


def rows_read(
    stage: LayerStage | LoopStage, tensor: str, shape: tuple[int, ...], result: tuple[int, ...]
) -> RowWindow | None:
    """Return the rows that a stage reads for one row; None where they are no window that moves on.

    ``shape`` is the tensor's, ``result`` that of what the stage makes of it.
    """
    if isinstance(stage, LayerStage):
        return layer_rows(stage)
    windows = {_loop_rows(load, around, shape, result) for load, around in uses(stage.expr, tensor)}
    return windows.pop() if len(windows) == 1 else None


def _loop_rows(
    load: Load, around: Reduce | None, shape: tuple[int, ...], result: tuple[int, ...]
) -> RowWindow | None:
    """The window of one read; None unless isl finds every read inside it."""
    at = load.index[ROW_AXIS]
    if not isinstance(at, Affine):
        return None
    window = row_window(at, ROW_ITERATOR, dict(around.over) if around else {}, shape[ROW_AXIS])
    if window is None:
        return None
    low = Affine(((ROW_ITERATOR, window.step),), window.low)
    domain, extent = iterators(result), window.high - window.low + 1
    inside = reads_within(load, domain, around, axis=ROW_AXIS, low=low, extent=extent)
    return window if inside else None
