"""How the operands of a layer's problem lie in memory, and which rows a stage reads for a row.

The contraction of a problem answers, whichever operator it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import Final, Self

from polysci.loop_ir.expressions import Load, Reduce
from polysci.numerics.affine import Affine
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.program.passes.relations import iterators, reads_within, uses
from polysci.program.stages import LayerStage, LoopStage, Window

MATRIX: Final = 2  # the last axes of a stack of matrices


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
class Rows:
    """A tensor as rows: its extents, and the axis of rows, the slowest one."""

    shape: tuple[int, ...]
    axis: int

    @classmethod
    def of(cls, shape: tuple[int, ...], strides: Sequence[int]) -> Self | None:
        """Return the rows of a tensor with these strides; None for a single element."""
        real = [at for at, extent in enumerate(shape) if extent > 1]
        return cls(shape, max(real, key=lambda at: strides[at])) if real else None

    @property
    def height(self) -> int:
        """The number of rows."""
        return self.shape[self.axis]

    @property
    def iterator(self) -> str:
        """The iterator over rows of loops that make the tensor."""
        return f"i{self.axis}"


@dataclass(frozen=True, slots=True)
class RowWindow:
    """Rows of a tensor that row p of the next one reads: p * step + low to p * step + high."""

    step: int
    low: int
    high: int
    extent: int  # rows of the tensor

    @property
    def span(self) -> int:
        """The rows from the first to the last that are read for one row."""
        return self.high - self.low + 1

    def first(self, row: int) -> int:
        """Return the first row that is read for a row of the result, or for those behind it."""
        return row * self.step + self.low

    def upto(self, end: int) -> int:
        """Return the end of the rows that are read for those of the result before ``end``."""
        return (end - 1) * self.step + self.high + 1


def join_windows(one: RowWindow | None, other: RowWindow | None) -> RowWindow | None:
    """Return the window around two; None where one is missing or they move at different speeds."""
    if one is None or other is None or one.step != other.step:
        return None
    return replace(one, low=min(one.low, other.low), high=max(one.high, other.high))


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


def row_dim(layer: LayerStage, rows: Rows) -> str:
    """Return the loop over the rows of a layer's result; empty where none walks them one by one."""
    _, roles, _ = model_of(layer.problem)
    at = _axis_of(layer.y, rows)
    subscript = None if at is None else roles.out.index[at]
    if subscript is None or subscript.const or [coef for _, coef in subscript.terms] != [1]:
        return ""
    return subscript.terms[0][0]


def _axis_of(window: Window, rows: Rows) -> int | None:
    """Return the axis of a problem that is the rows of a tensor, and nothing else."""
    real = [[at for at in axes if rows.shape[at] > 1] for axes in window.axes]
    return real.index([rows.axis]) if [rows.axis] in real else None


def rows_read(
    stage: LayerStage | LoopStage, tensor: str, source: Rows, result: Rows
) -> RowWindow | None:
    """Return the rows of a tensor that a stage reads for one row of its result.

    None where they are no window that moves on with the rows.
    """
    if isinstance(stage, LayerStage):
        windows = [*_layer_windows(stage, tensor, source, result)]
    else:
        windows = [
            _loop_rows(load, around, source, result) for load, around in uses(stage.expr, tensor)
        ]
    return reduce(join_windows, windows)


def _layer_windows(
    layer: LayerStage, tensor: str, source: Rows, result: Rows
) -> Iterator[RowWindow | None]:
    """Yield the rows that a layer reads of a tensor that it multiplies, adds, or both."""
    if layer.x.tensor == tensor:
        rows = _stack_rows if layer.stack else _layer_rows
        yield rows(layer, source, result)
    if layer.residual == tensor:
        yield RowWindow(1, 0, 0, source.height) if source == result else None
    if tensor in (layer.weights, layer.bias):
        yield None


def products_of_rows(layer: LayerStage, result: Rows) -> int:
    """Return how many products of a stack make a row of its result; 0 if they take no turns."""
    count, over = divmod(len(layer.stack), result.height)
    inner = result.axis < len(result.shape) - MATRIX
    in_turns = not over and inner and all(
        places[result.axis] == at // count for at, places in enumerate(layer.stack)
    )  # fmt: skip
    return count if in_turns else 0


def _stack_rows(layer: LayerStage, source: Rows, result: Rows) -> RowWindow | None:
    """Return a row for each row where both are matrices of a stack, as many; else None."""
    behind = len(source.shape) - source.axis
    same = behind == len(result.shape) - result.axis and source.height == result.height
    matrices = behind > MATRIX and products_of_rows(layer, result) > 0
    return RowWindow(1, 0, 0, source.height) if same and matrices else None


def _layer_rows(layer: LayerStage, source: Rows, result: Rows) -> RowWindow | None:
    """Return the rows of x that a row of a layer's result reads; None where these are no window."""
    _, roles, _ = model_of(layer.problem)
    at, row = _axis_of(layer.x, source), row_dim(layer, result)
    if at is None or not row:
        return None
    extents = {dim.name: dim.extent for dim in roles.dims}
    return row_window(roles.a.index[at], row, extents, roles.a.shape[at])


def _loop_rows(load: Load, around: Reduce | None, source: Rows, result: Rows) -> RowWindow | None:
    """Return the window of one read; None unless isl finds every read inside it."""
    at, row = load.index[source.axis], result.iterator
    if not isinstance(at, Affine):
        return None
    window = row_window(at, row, dict(around.over) if around else {}, source.height)
    if window is None:
        return None
    low = Affine(((row, window.step),), window.low)
    domain, extent = iterators(result.shape), window.high - window.low + 1
    inside = reads_within(load, domain, around, axis=source.axis, low=low, extent=extent)
    return window if inside else None
