"""``copy(A,B)``: factors copied into the memory that the work-items of a group share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, Self

from polysci.space.directives.directive import Directive, Place

if TYPE_CHECKING:
    from polysci.space.schedule import Schedule

_WORD: Final = re.compile(
    r"copy\(A,B\)(?:x(?P<stages>[1-4]))?(?:\+(?P<pad>[0-9]{1,2})|(?P<swizzle>\|swizzle))?"
)


@dataclass(frozen=True, slots=True)
class Copy(Directive):
    """Parts of A and B that a step of the reduction reads, in lines of a group's tile.

    ``stages``: with several of them steps take turns; items wait once a step instead of twice, and
    copy ahead of their sums. ``pad``: elements behind each line, so that neighbouring lines begin
    in other banks; ``swizzle`` moves chunks of 16 bytes within their lines to that end instead.
    """

    stages: int = 1
    pad: int = 0
    swizzle: bool = False
    word: ClassVar[str] = "copy(A,B)"
    place: ClassVar[Place] = Place.AMONG
    field_types: ClassVar[Mapping[str, type]] = MappingProxyType(
        {"stages": int, "pad": int, "swizzle": bool}
    )

    def __str__(self) -> str:
        stages = f"x{self.stages}" if self.stages > 1 else ""
        places = "|swizzle" if self.swizzle else f"+{self.pad}" if self.pad else ""
        return f"{self.word}{stages}{places}"

    @classmethod
    def forms(cls) -> tuple[str, ...]:
        return ("copy(A,B)[xSTAGES][+pad]", "copy(A,B)[xSTAGES]|swizzle")

    @classmethod
    def parse(cls, word: str) -> Self | None:
        match = _WORD.fullmatch(word)
        if not match:
            return None
        numbers = int(match["stages"] or 1), int(match["pad"] or 0)
        return cls(*numbers, swizzle=bool(match["swizzle"]))

    def fault(self, schedule: Schedule) -> str:
        return "" if schedule.mapped else f"{self}: no loop is mapped to work-items"
