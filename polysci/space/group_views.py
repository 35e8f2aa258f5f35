"""A contraction as kernels take it: as it is, several groups in one register tile, or swapped.

Groups with fewer columns than a vector has lanes leave lanes idle. There are two ways to fill them.

*Merged*: ``groups`` neighbouring groups become one of so many times the columns and reduction
steps, whose weights are block-diagonal. The zeros cost multiplications. Integers only: a zero times
an infinity of another group would be NaN.

*Rotated*: where a group has as many columns as reduction steps, a power of two, the lanes run over
the channels of several groups, as in depthwise, and a reduction of ``shifts`` steps that does not
move A takes the place of the group's own: step d multiplies channel l with its weight for column
l ^ d (``microkernels/grouped.h``). Nothing is wasted. Kernels that multiply words take several of
these steps at once.

*Swapped*: the factors change places (``directives.swap``).

*Stencil*: pixels are the columns, channels are batches (``stencil_roles``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from polysci.errors import UnsupportedError
from polysci.numerics.affine import Affine
from polysci.numerics.dtypes import DTYPES
from polysci.polyhedral.contraction import Contraction, Dim, Operand, Strides
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives import Swap
from polysci.space.directives.swap import swap_refusal, swap_roles
from polysci.space.schedule import Schedule
from polysci.space.stencil_roles import stencil_refusal, stencil_roles
from polysci.target.microkernels import find, lanes, ways


@dataclass(frozen=True, slots=True)
class GroupView:
    """A way to take a contraction: as it is, groups merged or rotated, swapped, a stencil."""

    groups: int = 1
    shifts: int = 1
    swapped: bool = False
    stencil: bool = False

    def of(self, contraction: Contraction) -> Contraction:
        """The contraction as kernels take it. Raises UnsupportedError where it cannot be."""
        if self.swapped:
            return swap_roles(contraction)
        if self.stencil:
            return stencil_roles(contraction)
        if self.shifts > 1:
            return rotate_groups(contraction, self.shifts)
        return merge_groups(contraction, self.groups) if self.groups > 1 else contraction

    def inside(self, contraction: Contraction, schedule: Schedule) -> Schedule:
        """The schedule in the terms of ``of``. Raises UnsupportedError if it splits a group."""
        if self.swapped or self.stencil or self == GroupView():
            return schedule
        gone = [d.name for d in contraction.dims if d.role in ("n", "k")]
        for loop in schedule.loops:
            if loop.dim in gone:
                raise UnsupportedError(
                    f"schedule {schedule}: several groups in one call leave no loop over "
                    f"{loop.dim!r}"
                )
        return _scale_steps(contraction, schedule, self.shifts, self.groups)

    def outside(self, contraction: Contraction, schedule: Schedule) -> Schedule:
        """The inverse of ``inside``."""
        if self.swapped:
            return schedule.having(Swap())
        return _scale_steps(contraction, schedule, self.groups, self.shifts)


def group_view_of(contraction: Contraction, schedule: Schedule) -> GroupView:
    """Return how the kernel of a schedule takes it. Raises SpecError for an unknown one."""
    if schedule.has(Swap):
        return GroupView(swapped=True)
    kernel = find(schedule.kernel)
    if kernel.stencil:
        return GroupView(stencil=True)
    if kernel.group > 1:
        return GroupView(shifts=kernel.group)
    group = group_of(contraction)
    if group is None:
        return GroupView()
    return GroupView(schedule.tile({d.name: d.extent for d in contraction.dims})[group.name])


def group_views(contraction: Contraction, strides: Strides, isa: str) -> Iterator[GroupView]:
    """The contraction as it is, swapped, as a stencil, with narrow groups that fill the lanes."""
    yield GroupView()
    if not swap_refusal(contraction, strides):
        yield GroupView(swapped=True)
    if not stencil_refusal(contraction, strides):
        yield GroupView(stencil=True)
    group = group_of(contraction)
    if group is None:
        return
    columns = contraction.by_role("n")[0].extent
    for factor in range(2, group.extent + 1) if DTYPES[contraction.a.dtype].integer else ():
        if group.extent % factor == 0 and factor * columns <= lanes(isa):
            yield GroupView(groups=factor)
    if ways(f"grouped{columns}", isa, contraction.a.dtype) and _rotates(contraction, columns):
        yield GroupView(shifts=columns)


def roles_of(contraction: Contraction, schedule: Schedule) -> Contraction:
    """The contraction whose loops a schedule has: swapped or a stencil where it says so."""
    if find(schedule.kernel).stencil:
        return stencil_roles(contraction)
    return swap_roles(contraction) if schedule.has(Swap) else contraction


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
    """Return whether ``group`` continues where ``inner`` ends, on one axis."""
    return any(
        affine.coef(inner.name) == 1 and affine.coef(group.name) == inner.extent
        for affine in operand.index
    )


def merge_groups(contraction: Contraction, factor: int) -> Contraction:
    """``factor`` groups as one. Raises UnsupportedError unless integer groups divide evenly."""
    group = group_of(contraction)
    if not DTYPES[contraction.a.dtype].integer:
        raise UnsupportedError(
            f"{contraction}: several groups of {contraction.a.dtype} in one call: their zeros make "
            "NaN of another group's infinity; one group a call, or integers"
        )
    if group is None or group.extent % factor:
        raise UnsupportedError(f"{contraction}: cannot put {factor} groups into one call")
    scale = {d.name: factor for d in contraction.dims if d.role in ("n", "k")}
    dims = tuple(
        Dim(d.name, d.extent // factor if d == group else d.extent * scale.get(d.name, 1), d.role)
        for d in contraction.dims
    )

    def widen(operand: Operand) -> Operand:
        index = tuple(
            Affine(
                tuple((n, coef * factor if n == group.name else coef) for n, coef in affine.terms),
                affine.const,
            )
            for affine in operand.index
        )
        return replace(operand, index=index)

    return replace(
        contraction, dims=dims, out=widen(contraction.out), a=widen(contraction.a),
        b=widen(contraction.b),
    )  # fmt: skip


def rotate_groups(contraction: Contraction, shifts: int) -> Contraction:
    """The channels of all groups along the columns, and ``shifts`` steps that do not move A.

    A tile of it reads and writes what the calls read and write, as sets: which weight meets which
    element is the packing's doing. Raises UnsupportedError unless groups are ``shifts`` wide and
    deep.
    """
    group = group_of(contraction)
    if group is None or not _rotates(contraction, shifts):
        raise UnsupportedError(f"{contraction}: its groups do not have {shifts} columns and steps")
    (column,), (depth,) = contraction.by_role("n"), contraction.by_role("k")
    kept = {
        group: Dim(group.name, group.extent * shifts, group.role),
        column: Dim(column.name, 1, column.role),
    }
    dims = [kept.get(d, d) for d in contraction.dims if d != depth]

    def narrow(operand: Operand, *moving: str) -> Operand:
        index = tuple(
            Affine(
                tuple(
                    (name, coef // shifts if name == group.name else coef)
                    for name, coef in affine.terms
                    if name in moving or name not in (column.name, depth.name)
                ),
                affine.const,
            )
            for affine in operand.index
        )
        return replace(operand, index=index)

    return replace(
        contraction, dims=(*dims, Dim(depth.name, shifts, "br")), a=narrow(contraction.a),
        b=narrow(contraction.b, depth.name), out=narrow(contraction.out),
    )  # fmt: skip


def shift_of(contraction: Contraction) -> Dim | None:
    """The reduction of a rotated contraction that does not move A; None in any other."""
    still = [d for d in contraction.by_role("br") if not contraction.a.uses(d.name)]
    return still[0] if still else None


def _rotates(contraction: Contraction, shifts: int) -> bool:
    group = group_of(contraction)
    if group is None or shifts < 2 or shifts & (shifts - 1):
        return False
    (column,), (depth,) = contraction.by_role("n"), contraction.by_role("k")
    pairs = (contraction.out, column), (contraction.b, column), (contraction.a, depth)
    once = all(_axes(operand, dim) == _axes(operand, group) == 1 for operand, dim in pairs)
    return once and column.extent == depth.extent == shifts


def _axes(operand: Operand, dim: Dim) -> int:
    """Return how many axes of an operand a dimension indexes."""
    return sum(affine.coef(dim.name) != 0 for affine in operand.index)


def _scale_steps(contraction: Contraction, schedule: Schedule, times: int, over: int) -> Schedule:
    """The schedule with steps over the group ``times`` / ``over`` as long."""
    group = group_of(contraction)
    steps = tuple(
        replace(step, step=step.step * times // over)
        if isinstance(step, Loop) and group and step.dim == group.name
        else step
        for step in schedule.steps
    )
    return replace(schedule, steps=steps)
