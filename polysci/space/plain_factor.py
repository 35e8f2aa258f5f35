"""B that changes from call to call, read where it lies: which products need no panels of it."""

from __future__ import annotations

from polysci.polyhedral.contraction import Contraction, columns_of
from polysci.space.knobs import Strides
from polysci.space.schedule import Schedule
from polysci.target.microkernels import Microkernel


def plain_refusal(
    contraction: Contraction, strides: Strides, schedule: Schedule, kernel: Microkernel
) -> str:
    """Why a kernel cannot read B where it lies; empty where it can."""
    if why := panels_refusal(contraction, strides):
        return why
    if kernel.family != "brgemm":
        return f"{kernel} does not"
    return "swap(A,B) and ahead(B) are of panels" if schedule.swap or schedule.ahead else ""


def panels_refusal(contraction: Contraction, strides: Strides) -> str:
    """Why no schedule can read B where it lies; empty where some can."""
    if not contraction.packs_b:
        return f"{contraction.b.array} is packed ahead"
    types = {operand.dtype for operand in (contraction.a, contraction.b, contraction.out)}
    if types != {"f32"}:
        return "only products of f32 do"
    if contraction.padded or any(d.extent > 1 for d in contraction.by_role("br")):
        return "it has several reductions, or padding"
    if contraction.b.offset(strides[contraction.b.array]).const:
        return f"{contraction.b.array} does not begin with the first column"
    if not (columns_touch(contraction, strides) or sums_dots(contraction, strides)):
        return f"neither columns of {contraction.b.array} are neighbours, nor rows of both factors"
    return ""


def columns_touch(contraction: Contraction, strides: Strides) -> bool:
    """Whether a row of B is read by whole vectors."""
    b, column = contraction.b, columns_of(contraction)
    return b.offset(strides[b.array]).coef(column.name) == 1 and column.extent > 1


def sums_dots(contraction: Contraction, strides: Strides) -> bool:
    """Whether both factors are read by vectors along k: each result is a dot product."""
    depths = contraction.by_role("k")
    return len(depths) == 1 and all(
        factor.offset(strides[factor.array]).coef(depths[0].name) == 1
        for factor in (contraction.a, contraction.b)
    )
