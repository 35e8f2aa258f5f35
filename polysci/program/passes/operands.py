"""How the operands of a layer's problem lie in memory, and which rows a stage reads for a row.

The contraction of a problem answers, whichever operator it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from math import prod
from typing import Self

from polysci.loop_ir.expressions import Load, Reduce
from polysci.numerics.affine import Affine
from polysci.ops.convolutions import Convolution
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.program.passes.relations import iterators, reads_within, uses
from polysci.program.stages import LayerStage, LoopStage, Window


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
    """A tensor as rows: its extents, and the slowest axes, whose places the rows are, in order."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], strides: Sequence[int], count: int = 0) -> Self | None:
        """Return so many rows of a tensor with these strides; 0: those of its slowest axis.

        None for a single element, and where no slowest axes have so many places.
        """
        ways = cls.every(shape, strides)
        return next((its for its in ways if count in (0, its.height)), None)

    @classmethod
    def every(cls, shape: tuple[int, ...], strides: Sequence[int]) -> Iterator[Self]:
        """Yield a tensor as rows of its slowest axis, and of more while these run on in memory."""
        real = [at for at, extent in enumerate(shape) if extent > 1]
        real.sort(key=lambda at: -strides[at])
        for count, inner in enumerate(real):
            if count and strides[real[count - 1]] != strides[inner] * shape[inner]:
                return
            yield cls(shape, tuple(real[: count + 1]))

    @property
    def height(self) -> int:
        """The number of rows."""
        return prod(self.shape[at] for at in self.axes)

    @property
    def steps(self) -> tuple[int, ...]:
        """Rows from one place to the next along each axis."""
        extents = [self.shape[at] for at in self.axes]
        return tuple(prod(extents[at + 1 :]) for at in range(len(extents)))

    @property
    def iterators(self) -> tuple[str, ...]:
        """The iterators over rows of loops that make the tensor, the outermost first."""
        return tuple(f"i{at}" for at in self.axes)


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
    part = rows_of_part(layer, layer.y, rows)
    at = None if layer.stack and not part else _axis_of(layer.y, part or rows)
    subscript = None if at is None else roles.out.index[at]
    if subscript is None or subscript.const or [coef for _, coef in subscript.terms] != [1]:
        return ""
    return subscript.terms[0][0]


def _axis_of(window: Window, rows: Rows) -> int | None:
    """Return the axis of a problem that is the rows of a tensor, and nothing else."""
    real = [tuple(at for at in axes if rows.shape[at] > 1) for axes in window.axes]
    return real.index(rows.axes) if rows.axes in real else None


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
        yield _layer_rows(layer, source, result)
    if layer.residual == tensor:
        yield RowWindow(1, 0, 0, source.height) if source == result else None
    if tensor in (layer.weights, layer.bias):
        yield None


def part_axes(layer: LayerStage, window: Window, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the axes of x or y along which the parts of a layer lie.

    Parts are the products of a stack, or the images of a batch.
    """
    axes: Sequence[int] = ()
    if layer.stack:
        axes = range(len(layer.stack[0]))
    elif isinstance(layer.problem, Convolution) and layer.problem.batched:
        axes = window.axes[0]
    return tuple(at for at in axes if shape[at] > 1)


def rows_of_part(layer: LayerStage, window: Window, rows: Rows) -> Rows | None:
    """Return the rows of x or y in one part of a layer.

    None where they are not those of all parts, one part behind the other.
    """
    outer = part_axes(layer, window, rows.shape)
    inner = rows.axes[len(outer) :]
    whole = bool(outer or layer.stack) and bool(inner) and rows.axes == (*outer, *inner)
    return replace(rows, axes=inner) if whole else None


def part_height(layer: LayerStage, result: Rows) -> int:
    """Return how many rows of a layer's result no border between two of its parts divides."""
    part = rows_of_part(layer, layer.y, result)
    return part.height if part else result.height


@dataclass(frozen=True, slots=True)
class Images:
    """The images of a batch, whose rows follow each other: their dimension, and rows of one."""

    dim: str
    height: int


def images_of(layer: LayerStage, rows: Rows) -> Images | None:
    """Return the images whose rows are those of a layer's result; None where it has other rows."""
    part = None if layer.stack else rows_of_part(layer, layer.y, rows)
    if part is None:
        return None
    ((dim, _),) = model_of(layer.problem)[1].out.index[0].terms
    return Images(dim, part.height)


def _layer_rows(layer: LayerStage, source: Rows, result: Rows) -> RowWindow | None:
    """Return the rows of x that a row of a layer's result reads; None where these are no window."""
    _, roles, _ = model_of(layer.problem)
    own, made = rows_of_part(layer, layer.x, source), rows_of_part(layer, layer.y, result)
    at, row = _axis_of(layer.x, own or source), row_dim(layer, result)
    if own and row and not layer.stack and result.axes == part_axes(layer, layer.y, result.shape):
        return RowWindow(own.height, 0, own.height - 1, source.height)  # of a whole image
    if at is None or not row or (own is None) != (made is None):
        return None
    extents = {dim.name: dim.extent for dim in roles.dims}
    window = row_window(roles.a.index[at], row, extents, source.height)
    if window and own and made:
        outer = [
            [rows.shape[axis] for axis in rows.axes[: -len(part.axes)]]
            for rows, part in ((source, own), (result, made))
        ]
        runs_on = outer[0] == outer[1] and own.height == window.step * made.height
        return window if runs_on else None
    return window


def _loop_rows(load: Load, around: Reduce | None, source: Rows, result: Rows) -> RowWindow | None:
    """Return the window of one read; None unless isl finds every read inside it.

    Rows of several axes count on: the last of an image comes before the first of the next one.
    """
    at = _row_read(load, source)
    if at is None:
        return None
    *_, row = result.iterators
    places = dict(zip(result.iterators, result.steps, strict=True))
    if any(at.coef(name) != at.coef(row) * rows for name, rows in places.items()):
        return None
    alone = replace(at, terms=tuple(it for it in at.terms if it[0] == row or it[0] not in places))
    window = row_window(alone, row, dict(around.over) if around else {}, source.height)
    if window is None:
        return None
    low = Affine(tuple((it, window.step * rows) for it, rows in places.items()), window.low)
    domain, along = iterators(result.shape), dict(zip(source.axes, source.steps, strict=True))
    inside = reads_within(load, domain, around, along=along, low=low, extent=window.span)
    return window if inside else None


def _row_read(load: Load, source: Rows) -> Affine | None:
    """Return the row of a tensor that is read; None where data or a table says which."""
    terms, const = dict[str, int](), 0
    for axis, rows in zip(source.axes, source.steps, strict=True):
        at = load.index[axis]
        if not isinstance(at, Affine):
            return None
        const += at.const * rows
        for name, coef in at.terms:
            terms[name] = terms.get(name, 0) + coef * rows
    return Affine(tuple(terms.items()), const)
