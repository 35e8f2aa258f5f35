"""Which rows of a tensor a stage reads to make one row of its result."""

from __future__ import annotations

from polysci.loop_ir.expressions import Load, Reduce, loads, reductions
from polysci.polyhedral.affine import Affine
from polysci.program.passes.operands import RowWindow, layer_rows, row_window
from polysci.program.passes.relations import iterators, reads_within
from polysci.program.stages import ROW_AXIS, LayerStage, LoopStage

_ROW = f"i{ROW_AXIS}"


def rows_read(
    stage: LayerStage | LoopStage, tensor: str, shape: tuple[int, ...], made: tuple[int, ...]
) -> RowWindow | None:
    """None where these are no window that moves on with the rows.

    ``shape`` is the tensor's, ``made`` that of what the stage makes of it.
    """
    if isinstance(stage, LayerStage):
        return layer_rows(stage)
    windows = {_loop_rows(load, around, shape, made) for load, around in _uses(stage, tensor)}
    return windows.pop() if len(windows) == 1 else None


def _loop_rows(
    load: Load, around: Reduce | None, shape: tuple[int, ...], made: tuple[int, ...]
) -> RowWindow | None:
    """The window of one read; None unless isl finds every read inside it."""
    at = load.index[ROW_AXIS]
    if not isinstance(at, Affine):
        return None
    window = row_window(at, _ROW, dict(around.over) if around else {}, shape[ROW_AXIS])
    if window is None:
        return None
    low = Affine(((_ROW, window.step),), window.low)
    domain, extent = iterators(made), window.high - window.low + 1
    inside = reads_within(load, domain, around, axis=ROW_AXIS, low=low, extent=extent)
    return window if inside else None


def _uses(stage: LoopStage, tensor: str) -> list[tuple[Load, Reduce | None]]:
    """Reads of a tensor with the reduction around them."""
    inside = [
        (load, reduction)
        for reduction in reductions(stage.expr)
        for load in loads(reduction.body)
        if load.tensor == tensor
    ]
    reduced = [load for load, _ in inside]
    reads = [load for load in loads(stage.expr) if load.tensor == tensor]
    return inside + [(load, None) for load in reads if load not in reduced]
