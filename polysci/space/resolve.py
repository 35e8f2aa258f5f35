"""The plan of a schedule for one problem, after checks of roles, tiles and kernels."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from polysci.errors import UnsupportedError
from polysci.numerics.dtypes import COMPUTES, computes
from polysci.polyhedral.contraction import Contraction, Dim, Operand, columns_of
from polysci.space import group_views
from polysci.space.directives import Plain, Swap
from polysci.space.directives.private import copies_of
from polysci.space.packed_copy import packed_coef, packed_copy_in, swapped_copy_of
from polysci.space.padding import cut
from polysci.space.plan import Plan
from polysci.space.schedule import Schedule
from polysci.space.stencil_roles import (
    check_window,
    stencil_refusal,
    stencil_roles,
    taps_of,
)
from polysci.target.isas import isa_of
from polysci.target.microkernels import Microkernel, find


def storage(operand: Operand, strides: tuple[int, ...], dims: tuple[Dim, ...]) -> dict[str, int]:
    """Storage stride of every dimension, in elements."""
    offset = operand.offset(strides)
    return {d.name: offset.coef(d.name) for d in dims}


def resolve(
    contraction: Contraction, strides: Mapping[str, tuple[int, ...]], schedule: Schedule
) -> Plan:
    """Resolve ``schedule`` for a contraction whose arrays have these storage strides.

    Raises SpecError for loops that do not nest, UnsupportedError for what cannot be generated.
    """
    if contraction.clipped:
        raise UnsupportedError(f"{contraction.formula}: guards cut the output {contraction.out}")
    kernel = find(schedule.kernel)
    _check_roles(contraction, strides, schedule, kernel)
    view = group_views.group_view_of(contraction, schedule)
    if not view.swapped:
        schedule.check({d.name: d.extent for d in contraction.dims})
    out = contraction.out.array
    private = copies_of(contraction, strides[out], schedule, kernel)
    if private:
        contraction = private.sums(contraction, kernel)
        strides = {**strides, out: private.strides}
    original = contraction
    schedule, contraction = view.inside(contraction, schedule), view.of(contraction)
    extents = {d.name: d.extent for d in contraction.dims}
    schedule.check(extents)
    tile = schedule.tile(extents)
    column = columns_of(contraction)
    check_taps(contraction, schedule, kernel, tile)
    named = {"x": contraction.x, "C": contraction.out}
    named |= {"B": contraction.b} if schedule.has(Plain) else {}
    coef = {at: storage(op, strides[op.array], contraction.dims) for at, op in named.items()}
    base = contraction.x.offset(strides[contraction.x.array]).const
    depths = [d.name for d in contraction.dims if d.role == "k"]
    if len(depths) > 1:
        raise UnsupportedError(f"{contraction.formula}: more than one k dimension")
    depth = depths[0] if depths else None
    source = original if contraction.gathered else contraction
    if view.swapped:
        box = swapped_copy_of(original, contraction, schedule, kernel)
    else:
        own = strides[contraction.a.array]
        box = packed_copy_in(contraction, own, schedule, column.name, kernel)
    if box:
        coef["x"], base = packed_coef(source, box), 0
    rows = row_dims(contraction, schedule, tile, column.name)
    along = dict.fromkeys(extents, 0) if view.swapped else coef["x"]  # A's stride, if not packed
    check_kernel(contraction, schedule, kernel, tile, rows, column, along)
    in_words = box is not None and box.word > 1
    check_compute(contraction, schedule, kernel, tile, depth, along, in_words=in_words)
    pieces, ranges = cut(contraction, tile, packed=box is not None)
    taps = tuple(d.name for d in contraction.by_role("br") if contraction.a.uses(d.name))
    plan = Plan(
        contraction, schedule, kernel, tile, rows, column.name, depth,
        taps_of(contraction) if kernel.stencil else taps,
        coef, base, box, pieces, ranges, source.x,
        schedule.tile(extents, schedule.panels_depth), view.groups,
        private=private,
    )  # fmt: skip
    for directive in schedule.directives:
        plan = directive.resolve(plan)
    return plan


def _check_roles(
    contraction: Contraction,
    strides: Mapping[str, tuple[int, ...]],
    schedule: Schedule,
    kernel: Microkernel,
) -> None:
    """Raise UnsupportedError where a contraction cannot have the roles of a schedule."""
    for directive in schedule.directives:
        if why := directive.refusal(contraction, strides, schedule, kernel):
            raise UnsupportedError(f"schedule {schedule}: {why}")
    if kernel.stencil and (why := stencil_refusal(contraction, strides)):
        raise UnsupportedError(f"schedule {schedule}: no stencil: {why}")
    if kernel.stencil and not schedule.has(Swap):
        check_window(stencil_roles(contraction), schedule)


def row_dims(
    contraction: Contraction, schedule: Schedule, tile: Mapping[str, int], column: str
) -> tuple[str, ...]:
    """Dimensions that make up the rows of the register tile, outer first."""
    rows = tuple(
        d.name
        for d in contraction.dims
        if d.role in ("m", "batch", "n") and d.name != column and tile[d.name] > 1
    )
    if any(d.role != "m" for d in contraction.dims if d.name in rows) or len(rows) > 2:
        raise UnsupportedError(
            f"schedule {schedule}: one call may span at most two row dimensions, not {rows}"
        )
    return rows


def check_taps(
    contraction: Contraction, schedule: Schedule, kernel: Microkernel, tile: Mapping[str, int]
) -> None:
    """Raise UnsupportedError unless every loop over a tap splits it and may leave its sums in C."""
    looped = {loop.dim for loop in schedule.loops}
    for dim in contraction.by_role("br"):
        if tile[dim.name] == dim.extent:
            if dim.name in looped:
                raise UnsupportedError(
                    f"schedule {schedule}: the loop over {dim.name!r} runs once: leave it out"
                )
            continue
        if kernel.family != "brgemm" or contraction.swapped:
            raise UnsupportedError(
                f"schedule {schedule}: {'swapped ' * contraction.swapped}{kernel} takes "
                f"{dim.name!r} whole: it must stay inside the call"
            )
        if contraction.out.dtype != COMPUTES[kernel.compute].sum.name:
            raise UnsupportedError(
                f"schedule {schedule}: {contraction.out.array} holds {contraction.out.dtype}, "
                f"which cannot keep partial sums: {dim.name!r} must stay inside the call"
            )


def check_kernel(
    contraction: Contraction,
    schedule: Schedule,
    kernel: Microkernel,
    tile: Mapping[str, int],
    rows: tuple[str, ...],
    column: Dim,
    a: Mapping[str, int],
) -> None:
    """Raise UnsupportedError unless the tile fits the microkernel it names."""
    count, width = prod(tile[dim] for dim in rows), tile[column.name]
    if count > kernel.rows or width > kernel.cols:
        raise UnsupportedError(
            f"schedule {schedule}: a call of {count} rows x {width} columns does not fit {kernel}"
        )
    if width % kernel.panel_lanes and width != column.extent:
        raise UnsupportedError(
            f"schedule {schedule}: {column.name}:{width} is neither whole vectors of "
            f"{kernel.panel_lanes} nor all {column.extent} columns"
        )
    stride = a[column.name]
    if (stride != 0) != kernel.diagonal or stride not in (0, kernel.every):
        raise UnsupportedError(
            f"schedule {schedule}: {kernel} cannot read {contraction.a.array} with stride "
            f"{stride} along {column.name!r}"
        )


def check_compute(
    contraction: Contraction,
    schedule: Schedule,
    kernel: Microkernel,
    tile: Mapping[str, int],
    depth: str | None,
    a: Mapping[str, int],
    *,
    in_words: bool,
) -> None:
    """Raise UnsupportedError unless the kernel multiplies these types in this order.

    ``in_words``: its words lie in a copy of A, whatever its strides ``a`` are.
    """
    x, compute = contraction.multiplied, COMPUTES[kernel.compute]
    blocks = contraction.a.block > 1 and kernel.outer_products
    if blocks or (contraction.weights != "f32" and isa_of(kernel.isa).language != "c"):
        raise UnsupportedError(
            f"schedule {schedule}: {kernel} multiplies no weights of {contraction.b.dtype} by f32"
        )
    if kernel.compute not in computes(x, kernel.family):
        expected = " or ".join(computes(x, kernel.family))
        raise UnsupportedError(
            f"schedule {schedule}: {kernel} computes {kernel.compute}, but products of {x} "
            f"are computed as {expected}"
        )
    if depth is None:
        return
    apart = contraction.extent(depth) > 1 and a[depth] != 1
    if compute.vnni_factor > 1 and apart and not in_words:
        raise UnsupportedError(
            f"schedule {schedule}: {kernel} reads {compute.vnni_factor} neighbours along "
            f"{depth!r}, which lie {a[depth]} elements apart in {contraction.a.array}; pack(A) "
            "brings them together"
        )
    if tile[depth] == contraction.extent(depth):
        return
    if contraction.out.dtype != compute.sum.name:
        raise UnsupportedError(
            f"schedule {schedule}: {contraction.out.array} holds {contraction.out.dtype}, which "
            f"cannot keep partial sums of {compute.sum}: {depth!r} must stay inside the call"
        )
    if tile[depth] % compute.vnni_factor:
        raise UnsupportedError(
            f"schedule {schedule}: {depth}:{tile[depth]} is no multiple of the "
            f"{compute.vnni_factor} steps that {kernel} takes at once"
        )
