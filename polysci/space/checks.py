"""Checks of kernels for a schedule: shapes and types of tiles, and what stays in a call."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from polysci.errors import UnsupportedError
from polysci.numerics.dtypes import COMPUTES, computes
from polysci.polyhedral.contraction import Contraction, Dim
from polysci.space.schedule import Schedule
from polysci.target.microkernels import Microkernel


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
    if width % kernel.lanes and width != column.extent:
        raise UnsupportedError(
            f"schedule {schedule}: {column.name}:{width} is neither whole vectors of "
            f"{kernel.lanes} nor all {column.extent} columns"
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
    x, compute = contraction.a.dtype, COMPUTES[kernel.compute]
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
