"""Stacked products of few rows, as a step of decoding has: they read both factors where they lie.

A copy of the second factor in panels costs as much as the product, which reads it once.
"""

from __future__ import annotations

from dataclasses import replace

from polysci.ops.convolutions import Conv2d
from polysci.ops.matmul import Matmul
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.stages import LayerStage, Stage, Window
from polysci.target.coefficients import prior_of


def with_weights_in_place(placed: PlacedProgram) -> PlacedProgram:
    """Return the program with such products as ``Matmul`` problems in place of convolutions."""
    stages = tuple(map(_in_place, placed.program.stages))
    return replace(placed, program=replace(placed.program, stages=stages))


def _in_place(stage: Stage) -> Stage:
    """Return the product, whose weights are stored by rows, or by columns where those run on."""
    if not isinstance(stage, LayerStage) or not stage.stack or stage.problem.dtype != "f32":
        return stage
    problem = stage.problem
    assert isinstance(problem, Conv2d)
    columns, depth = stage.w[:2]
    rows = problem.W
    if rows > prior_of("plain_rows") or 1 not in (columns, depth):
        return stage
    by_columns = depth == 1
    product = Matmul(rows, problem.C, problem.K, transposed="b" * by_columns)
    return replace(
        stage, problem=product, x=_matrix(stage.x), y=_matrix(stage.y),
        w=(columns, depth) if by_columns else (depth, columns),
    )  # fmt: skip


def _matrix(pixels: Window) -> Window:
    """Return the pixels of one image row as the rows of a matrix, its channels as the columns."""
    _, channels, _, row = pixels.axes
    return replace(pixels, axes=(row, channels))
