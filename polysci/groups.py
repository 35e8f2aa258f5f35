"""Several narrow groups in one register tile: a grouped contraction seen as a wider one.

Groups with fewer columns than a vector has lanes leave lanes idle. ``factor`` neighbouring groups
become one group of factor x as many columns and reduction steps, whose weights are block-diagonal:
the zeros cost multiplications but fill the lanes, and one call does the work of ``factor``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polysci.contraction import Affine, Contraction, Dim, Operand
from polysci.errors import UnsupportedError
from polysci.schedule import Loop, Schedule


def group_of(contraction: Contraction) -> Dim | None:
    """The group dimension of a grouped contraction whose groups lie side by side, or None."""
    groups = [d for d in contraction.by_role("batch") if d.extent > 1]
    columns, depths = contraction.by_role("n"), contraction.by_role("k")
    if len(groups) != 1 or len(columns) != 1 or len(depths) != 1:
        return None
    group, column, depth = groups[0], columns[0], depths[0]
    if column.extent * depth.extent == 1:
        return None
    beside = _beside(contraction.out, group, column) and _beside(contraction.a, group, depth)
    return group if beside and _beside(contraction.b, group, column) else None


def _beside(operand: Operand, group: Dim, inner: Dim) -> bool:
    """Whether ``group`` continues where ``inner`` ends, on one axis."""
    return any(
        affine.coef(inner.name) == 1 and affine.coef(group.name) == inner.extent
        for affine in operand.index
    )


def merged(contraction: Contraction, factor: int) -> Contraction:
    """``factor`` groups as one. Raises UnsupportedError unless the groups divide evenly."""
    group = group_of(contraction)
    if group is None or group.extent % factor:
        raise UnsupportedError(f"{contraction}: cannot put {factor} groups into one call")
    scale = {d.name: factor for d in contraction.dims if d.role in ("n", "k")}
    dims = tuple(
        Dim(d.name, d.extent // factor if d == group else d.extent * scale.get(d.name, 1), d.role)
        for d in contraction.dims
    )

    def widened(operand: Operand) -> Operand:
        index = tuple(
            Affine(
                tuple((n, coef * factor if n == group.name else coef) for n, coef in affine.terms),
                affine.const,
            )
            for affine in operand.index
        )
        return replace(operand, index=index)

    return replace(
        contraction, dims=dims, out=widened(contraction.out), a=widened(contraction.a),
        b=widened(contraction.b),
    )  # fmt: skip


def factor_in(contraction: Contraction, schedule: Schedule) -> int:
    """Groups that one call of ``schedule`` computes."""
    group = group_of(contraction)
    if group is None:
        return 1
    return schedule.tile({d.name: d.extent for d in contraction.dims})[group.name]


def to_merged(contraction: Contraction, schedule: Schedule, factor: int) -> Schedule:
    """The schedule in terms of the merged contraction. Raises UnsupportedError if it splits one."""
    group = group_of(contraction)
    inside = [d.name for d in contraction.dims if d.role in ("n", "k")]
    for loop in schedule.loops:
        if loop.dim in inside:
            raise UnsupportedError(
                f"schedule {schedule}: {factor} groups in one call leave no loop over {loop.dim!r}"
            )
    return _scaled(schedule, group, lambda step: step // factor)


def from_merged(contraction: Contraction, schedule: Schedule, factor: int) -> Schedule:
    """The inverse of ``to_merged``."""
    return _scaled(schedule, group_of(contraction), lambda step: step * factor)


def _scaled(schedule: Schedule, group: Dim | None, scale: Callable[[int], int]) -> Schedule:
    steps = tuple(
        replace(step, step=scale(step.step))
        if isinstance(step, Loop) and group and step.dim == group.name
        else step
        for step in schedule.steps
    )
    return replace(schedule, steps=steps)
