"""B that changes from call to call, read where it lies: which products need no panels of it."""

from __future__ import annotations

from polysci.polyhedral.contraction import Contraction, columns_of
from polysci.polyhedral.schedule import Schedule
from polysci.space.knobs import Strides
from polysci.target.microkernels import Microkernel


def plain_refusal(
    contraction: Contraction, strides: Strides, schedule: Schedule, kernel: Microkernel
) -> str:
    """Why a kernel cannot read B where it lies; empty where it can."""
    if not contraction.packs_b:
        return f"{contraction.b.array} is packed ahead"
    types = {operand.dtype for operand in (contraction.a, contraction.b, contraction.out)}
    if types != {"f32"} or kernel.family != "brgemm":
        return "only products of f32 do"
    if schedule.swap or schedule.ahead:
        return "swap(A,B) and ahead(B) are of panels"
    if contraction.padded or any(d.extent > 1 for d in contraction.by_role("br")):
        return "it has several reductions, or padding"
    offset = contraction.b.offset(strides[contraction.b.array])
    if offset.coef(columns_of(contraction).name) != 1 or offset.const:
        return f"columns of {contraction.b.array} are not neighbours"
    return ""
