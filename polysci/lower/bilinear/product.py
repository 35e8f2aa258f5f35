"""Problems that are one product of two matrices: sizes, loops, and where rows lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polysci.errors import UnsupportedError
from polysci.numerics.arrays import Doubles
from polysci.ops.convolutions import Conv2d
from polysci.ops.matmul import Matmul
from polysci.ops.problem import Problem
from polysci.polyhedral.contraction import Strides

NAME = "bilinear"


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """C = A B of a problem: A is rows x depth, B depth x columns.

    ``names`` are the loops over rows, columns and depth, as in the problem's nest; of several over
    rows the innermost one. ``places`` are the axes of w by column and by depth.
    """

    problem: Problem
    rows: int
    depth: int
    columns: int
    names: tuple[str, str, str]
    arrays: tuple[str, str, str]
    row_extents: tuple[int, ...]
    row_axes: tuple[int, ...]
    last_axis: int
    places: tuple[int, int]

    @property
    def constant(self) -> bool:
        """Return whether B is packed ahead."""
        return self.problem.w_kind == "constant"

    def matrices(self, x: Doubles, w: Doubles) -> tuple[Doubles, Doubles]:
        """Return A and B out of a problem's operands."""
        column, depth = self.places
        b = w.reshape(w.shape[:2])
        return x.reshape(self.rows, self.depth), b.transpose(depth, column)

    def distances(self, strides: Strides) -> tuple[int, int, int, bool]:
        """Return from row to row of A, of B as it is stored and of C; whether B is by columns.

        Raises UnsupportedError where elements of a row do not lie side by side.
        """
        x, w, y = (strides.get(name) or self.problem.arrays()[name][1] for name in self.arrays)
        column, depth = (w[place] for place in self.places)
        rows = [self._row(own) for own in (x, y)]
        if None in rows or 1 not in (column, depth):
            raise UnsupportedError(f"{self.problem}: algorithm {NAME}: elements of a row lie apart")
        turned = column != 1
        return int(rows[0] or 0), column if turned else depth, int(rows[1] or 0), turned

    def _row(self, strides: Sequence[int]) -> int | None:
        """Return the distance of neighbouring rows; None where it is not one number."""
        row, inner = 0, 1
        for extent, axis in zip(self.row_extents, self.row_axes, strict=True):
            if extent == 1:
                continue
            if row and strides[axis] != inner * row:
                return None
            row = row or strides[axis]
            inner *= extent
        return row if strides[self.last_axis] == 1 else None


def refusal(problem: Problem) -> str:
    """Return the field, its value and the rule that exclude a problem; empty for none."""
    if isinstance(problem, Matmul):
        rules = _matmul_rules(problem)
    elif isinstance(problem, Conv2d):
        rules = _convolution_rules(problem)
    else:
        return "it is no product of two matrices, as mm, linear and 1x1 convolutions are"
    wrong = (f"{name}={value}: expected {rule}" for name, value, fits, rule in rules if not fits)
    return "; ".join(wrong)


Rules = list[tuple[str, object, bool, str]]


def _matmul_rules(problem: Matmul) -> Rules:
    other = problem.transposed.replace("b", "")
    return [
        ("dtype", problem.dtype, problem.dtype == "f32", "f32"),
        ("batch", problem.batch, problem.batch is None, "one product"),
        ("constant", repr(problem.constant), problem.constant != "a", "'b' or ''"),
        ("transposed", repr(problem.transposed), not other, "'b' or ''"),
        *_size_rules(M=problem.M, K=problem.K, N=problem.N),
    ]  # fmt: skip


def _convolution_rules(conv: Conv2d) -> Rules:
    point = (conv.R, conv.S, *conv.stride, *conv.pad) == (1, 1, 1, 1, 0, 0)
    image, output = (conv.H, conv.W), (conv.P, conv.Q)
    return [
        ("dtype", conv.dtype, conv.dtype == "f32", "f32"),
        ("filter", (conv.R, conv.S), (conv.R, conv.S) == (1, 1), "(1, 1)"),
        ("stride", conv.stride, conv.stride == (1, 1), "(1, 1)"),
        ("pad", conv.pad, conv.pad == (0, 0), "(0, 0)"),
        ("output", output, output == image or not point, str(image)),
        ("groups", conv.groups, conv.groups == 1, "1"),
        ("layout", conv.layout, conv.layout == "nhwc", "nhwc"),
        *_size_rules(NHW=conv.N * conv.H * conv.W, C=conv.C, K=conv.K),
    ]  # fmt: skip


def _size_rules(**sizes: int) -> Rules:
    return [(name, size, size > 1, "2 or more") for name, size in sizes.items()]


def product_of(problem: Problem) -> MatrixProduct:
    """Return the product. Raises UnsupportedError for one that no bilinear algorithm computes."""
    if why := refusal(problem):
        raise UnsupportedError(f"{problem}: algorithm {NAME}: {why}")
    if isinstance(problem, Matmul):
        places = (0, 1) if "b" in problem.transposed else (1, 0)
        return MatrixProduct(
            problem, problem.M, problem.K, problem.N, ("i", "j", "k"), ("A", "B", "O"),
            (problem.M,), (0,), 1, places,
        )  # fmt: skip
    assert isinstance(problem, Conv2d)
    conv = problem
    return MatrixProduct(
        conv, conv.N * conv.H * conv.W, conv.C, conv.K, ("q", "k", "c"), ("I", "W", "O"),
        (conv.W, conv.H, conv.N), (3, 2, 0), 1, (0, 1),
    )  # fmt: skip
