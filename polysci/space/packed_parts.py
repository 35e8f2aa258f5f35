"""B that changes from call to call, packed part by part inside loops: which products can."""

from __future__ import annotations

from collections.abc import Sequence

from polysci.polyhedral.contraction import Contraction, columns_of
from polysci.space.schedule import Schedule
from polysci.target.microkernels import Microkernel


def parts_refusal(
    contraction: Contraction, strides: Sequence[int], schedule: Schedule, kernel: Microkernel
) -> str:
    """Why a schedule cannot pack B part by part; empty where it can."""
    if not contraction.packs_b:
        return f"{contraction.b.array} is packed ahead"
    types = {contraction.a.dtype, contraction.b.dtype}
    pairs = types == {"bf16"} and kernel.compute == "bf16"
    if not (types == {"f32"} or pairs) or kernel.family != "brgemm":
        return "only products of f32 do, and words of two bf16"
    column = columns_of(contraction).name
    if pairs and contraction.b.offset(strides).coef(column) != 1:
        return f"steps of {column} lie apart in {contraction.b.array}"
    taps = [d.name for d in contraction.by_role("br") if d.extent > 1]
    if taps and contraction.by_role("k") and not pairs:
        return f"sums run over {', '.join(taps)} beside k"
    part = schedule.tile({d.name: d.extent for d in contraction.dims}, schedule.panels_depth)
    batch = [d.name for d in contraction.by_role("batch") if contraction.b.uses(d.name)]
    whole = [name for name in batch if part[name] > 1]
    return f"a part spans several positions of {', '.join(whole)}" if whole else ""
