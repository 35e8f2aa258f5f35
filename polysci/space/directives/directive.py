"""A directive: a word of a schedule that is no loop, and what it changes on the way to C."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from polysci.loop_ir.index import THREAD, ZERO, Index, as_index
from polysci.loop_ir.nodes import Address, LoopFunction, LoopStatement, Named, Value
from polysci.polyhedral.contraction import Contraction, Strides
from polysci.target.microkernels import Microkernel

if TYPE_CHECKING:
    from polysci.polyhedral.tile_schedule import Loop
    from polysci.space.enumerate import Family, LoopOrder
    from polysci.space.plan import Plan, Tile, Workspace
    from polysci.space.schedule import Schedule


class Place(Enum):
    """The place of a directive: before all loops, among them, or behind them."""

    FIRST = "first"
    AMONG = "among"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class TilePart:
    """The part of a register tile's function that a directive adds.

    ``parameters`` are integers behind those of every tile, which take the values that
    ``tile_operands`` gives. ``statements`` stand first, and ``fields`` are of ``ps_tile``, by which
    microkernels know of the directive. ``sums`` take the place of the statements that accumulate.
    """

    parameters: tuple[str, ...] = ()
    statements: tuple[LoopStatement, ...] = ()
    fields: Mapping[str, Value] = field(default_factory=dict)
    sums: tuple[LoopStatement, ...] | None = None


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """The entry point whose loops are lowered: what statements of directives refer to.

    Its arrays have these ``strides``. ``threads`` share its loops, in which its arguments are in
    ``args``.
    """

    symbol: str
    plan: Plan
    strides: Strides
    threads: int
    workspace: Workspace
    args: str

    @property
    def thread(self) -> Index:
        """The number of the thread that runs a turn of the loops."""
        return THREAD if self.threads > 1 else ZERO

    def panels(self, thread: Index) -> Address:
        """Return where a thread's panels of B begin."""
        step = self.plan.compute.bytes * self.workspace.panel_elements
        at = as_index(self.workspace.panels_at) + step * thread
        return Address(Address(Named("workspace"), at, "byte"), dtype="ps_b")


class Directive:
    """A row of ``DIRECTIVES``: a frozen dataclass that inherits from this.

    ``word`` is its text, or names it where it has several. Those that stand first, or last, do so
    in the order of the table. ``own_kind``: a search tells schedules with it from those without,
    and measures the best of both. ``sentence`` is what reports say of a schedule that has it,
    ``field_types`` are those of its numbers. ``features`` are rows of ``cost.features.FEATURES``
    that count where a schedule has it.

    Of its lowering, ``own_turns``: whatever threads there are, each turn of the parallel loops has
    ``begin_turn``, and ``finish`` is behind all. With them no call can compute some rows alone.
    """

    __slots__ = ()
    word: ClassVar[str]
    place: ClassVar[Place] = Place.FIRST
    own_kind: ClassVar[bool] = False
    sentence: ClassVar[str] = ""
    field_types: ClassVar[Mapping[str, type]] = MappingProxyType({})
    features: ClassVar[tuple[str, ...]] = ()
    own_turns: ClassVar[bool] = False

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
        """Return whether it may not stand in a schedule that has the ``other`` one."""
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

    # Its lowering: what it adds to the loop IR that a plan becomes, at points of it in this order.

    def enter(self, entry: EntryPoint) -> Sequence[LoopStatement]:
        """Return what a call does before all loops, whose arguments are in ``args``."""
        return ()

    def begin_turn(self, entry: EntryPoint, origin: Mapping[str, Index]) -> Sequence[LoopStatement]:
        """Return what a turn of the parallel loops does first, whose arguments are in ``local``.

        ``origin`` is where it starts, by dimension.
        """
        return ()

    def tile_operands(self, tile: Tile, origin: Mapping[str, Index]) -> Sequence[Index]:
        """Return the operands of a tile's call for ``TilePart.parameters``.

        ``origin`` is where the tile starts along the dimensions that have loops.
        """
        return ()

    def leave(self, entry: EntryPoint) -> Sequence[LoopStatement]:
        """Return what each thread does behind all loops."""
        return ()

    def finish(self, entry: EntryPoint) -> Sequence[LoopStatement]:
        """Return what each thread does when all have left the loops."""
        return ()

    def tile_part(self, tile: Tile) -> TilePart:
        """Return what it adds to the function of a register tile."""
        return TilePart()

    def functions(self, entry: EntryPoint) -> Sequence[LoopFunction]:
        """Return functions that its statements call."""
        return ()
