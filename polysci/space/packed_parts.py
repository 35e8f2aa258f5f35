"""B that changes from call to call, packed part by part inside loops: which products can."""

from __future__ import annotations

from polysci.polyhedral.contraction import Contraction
from polysci.polyhedral.schedule import Schedule
from polysci.target.microkernels import Microkernel


def parts_refusal(contraction: Contraction, schedule: Schedule, kernel: Microkernel) -> str:
    """Why a schedule cannot pack B part by part; empty where it can."""
    if not contraction.packs_b:
        return f"{contraction.b.array} is packed ahead"
    if (contraction.a.dtype, contraction.b.dtype) != ("f32", "f32") or kernel.family != "brgemm":
        return "only products of f32 do"
    taps = [d.name for d in contraction.by_role("br") if d.extent > 1]
    if taps and contraction.by_role("k"):
        return f"sums run over {', '.join(taps)} beside k"
    part = schedule.tile({d.name: d.extent for d in contraction.dims}, schedule.panels_depth)
    batch = [d.name for d in contraction.by_role("batch") if contraction.b.uses(d.name)]
    whole = [name for name in batch if part[name] > 1]
    return f"a part spans several positions of {', '.join(whole)}" if whole else ""
