"""``pack(A)`` and ``pack(B)``: copy what the loops inside read of an operand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from polysci.polyhedral.contraction import Contraction, Strides, columns_of
from polysci.space.directives.ahead import Ahead
from polysci.space.directives.directive import Directive, Place
from polysci.space.directives.plain import Plain
from polysci.space.directives.swap import Swap
from polysci.target.microkernels import Microkernel

if TYPE_CHECKING:
    from polysci.space.schedule import Schedule

_TEXT = re.compile(r"pack\((?:A\)(?:\+(?P<pad>[0-9]{1,6}))?|(?P<operand>B)\))")


@dataclass(frozen=True, slots=True)
class Pack(Directive):
    """``pack(A)[+pad]``: copy what the loops inside read of A, padding filled as x holds zero.

    ``pad`` elements are added between neighbouring pixels, so that rows do not fall into one
    cache set. ``pack(B)`` copies what they read of a B that changes from call to call into panels.
    The copies are in the plan; ``lower.direct`` makes their loops (``nest``, ``panels``).
    """

    pad: int = 0
    operand: str = "A"

    word = "pack"
    place = Place.AMONG
    field_types = MappingProxyType({"pad": int, "operand": str})
    features = ("copied_parts",)

    def __str__(self) -> str:
        return f"pack({self.operand})" + (f"+{self.pad}" if self.pad else "")

    @classmethod
    def forms(cls) -> tuple[str, ...]:
        return "pack(A)[+pad]", "pack(B)"

    @classmethod
    def parse(cls, word: str) -> Self | None:
        match = _TEXT.fullmatch(word)
        return cls(int(match["pad"] or 0), match["operand"] or "A") if match else None

    def repeats(self, other: object) -> bool:
        return isinstance(other, Pack) and self.operand == other.operand

    def fault(self, schedule: Schedule) -> str:
        if self.operand == "B":
            why = _partial_copy_fault(schedule)
            return f"pack(B): {why}" if why else ""
        between = 0 < schedule.pack_depth < len(schedule.parallel)
        return "packing may not stand between parallel loops" if between else ""

    def refusal(
        self, contraction: Contraction, strides: Strides, schedule: Schedule, kernel: Microkernel
    ) -> str:
        if self.operand == "A":
            return ""
        why = _parts_refusal(contraction, strides[contraction.b.array], schedule, kernel)
        return f"cannot pack parts of B: {why}" if why else ""


def _partial_copy_fault(schedule: Schedule) -> str:
    """Return why no loops can stand around copies of B; empty where they can."""
    if not schedule.panels_depth:
        return "it stands inside a loop; without it, B is copied before all of them"
    if schedule.panels_depth < len(schedule.parallel):
        return "it may not stand between parallel loops"
    other = next((row.word for row in (Swap, Plain, Ahead) if schedule.has(row)), "")
    return f"{other} needs B as a whole" if other else ""


def _parts_refusal(
    contraction: Contraction, strides: Sequence[int], schedule: Schedule, kernel: Microkernel
) -> str:
    """Return why a schedule cannot pack B part by part; empty where it can."""
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
    part = schedule.tile(contraction.extents, schedule.panels_depth)
    batch = [d.name for d in contraction.by_role("batch") if contraction.b.uses(d.name)]
    whole = [name for name in batch if part[name] > 1]
    return f"a part spans several positions of {', '.join(whole)}" if whole else ""
