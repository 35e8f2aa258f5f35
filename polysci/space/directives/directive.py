"""A directive: a word of a schedule that is no loop, and what it changes on the way to C."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from polysci.polyhedral.contraction import Contraction, Strides
from polysci.target.microkernels import Microkernel

if TYPE_CHECKING:
    from polysci.polyhedral.tile_schedule import Loop
    from polysci.space.enumerate import Family, LoopOrder
    from polysci.space.resolve import Plan
    from polysci.space.schedule import Schedule


class Place(Enum):
    """Where a directive stands: before all loops, among them, or behind them."""

    FIRST = "first"
    AMONG = "among"
    LAST = "last"


class Directive:
    """A row of ``DIRECTIVES``: a frozen dataclass that inherits from this.

    ``word`` is its text, or names it where it has several. Those that stand first, or last, do so
    in the order of the table. ``own_kind``: a search tells schedules with it from those without,
    and measures the best of both. ``headers`` are files of ``microkernels/`` that its C needs,
    ``sentence`` what reports say of a schedule that has it, ``field_types`` those of its numbers.
    ``features`` are rows of ``cost.features.FEATURES`` that count where a schedule has it.
    """

    __slots__ = ()
    word: ClassVar[str]
    place: ClassVar[Place] = Place.FIRST
    own_kind: ClassVar[bool] = False
    headers: ClassVar[tuple[str, ...]] = ()
    sentence: ClassVar[str] = ""
    field_types: ClassVar[Mapping[str, type]] = MappingProxyType({})
    features: ClassVar[tuple[str, ...]] = ()

    def __str__(self) -> str:
        return self.word

    @classmethod
    def forms(cls) -> tuple[str, ...]:
        """Return its spellings as messages give them."""
        return (cls.word,)

    @classmethod
    def parse(cls, word: str) -> Self | None:
        """Return the directive that a word spells; None where it spells another one."""
        return cls() if word == cls.word else None

    def repeats(self, other: object) -> bool:
        """Whether it may not stand in a schedule that has the ``other`` one."""
        return type(self) is type(other)

    def fault(self, schedule: Schedule) -> str:
        """Return why the loops of a schedule, or other directives, exclude it; empty: they do not.

        It begins with the directive or what it does, and is asked for any problem.
        """
        return ""

    def refusal(
        self, contraction: Contraction, strides: Strides, schedule: Schedule, kernel: Microkernel
    ) -> str:
        """Return why it does not fit the problem or the kernel; empty where it does."""
        return ""

    def resolve(self, plan: Plan) -> Plan:
        """Return the plan with what the directive changes. Raises UnsupportedError."""
        return plan

    @classmethod
    def variants(cls, order: LoopOrder) -> Sequence[NDArray[np.bool_]]:
        """Return which schedules of a loop order have it: one array a form of the family.

        An empty answer: enumeration does not add it. Two arrays double the family.
        """
        return ()

    @classmethod
    def of_member(cls, family: Family, index: int, loops: Sequence[Loop]) -> Self | None:
        """Return the directive of one schedule of a family, which has these loops."""
        return cls() if family.has(cls)[index] else None

    def remark(self, contraction: Contraction, schedule: Schedule, names: Sequence[str]) -> str:
        """Return what a comment of the C says of it; ``names`` are those of x, w and y there."""
        return ""

    def tile_fields(self, plan: Plan) -> Mapping[str, int]:
        """Return fields of ``ps_tile`` by which microkernels know of it."""
        return {}
