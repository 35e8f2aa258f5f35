"""A problem under a schedule of any algorithm as loop IR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from polysci.loop_ir.index import Variable, iterator, thread_share
from polysci.loop_ir.interface import Function, functions
from polysci.loop_ir.microkernels import Unit
from polysci.loop_ir.nodes import For, Let, LoopFunction, LoopModule, LoopStatement, Team, loop
from polysci.lower.algorithm import PLAIN, EmitOptions
from polysci.lower.registry import algorithm_of
from polysci.numerics.dtypes import Precision
from polysci.ops.problem import Problem
from polysci.polyhedral.tile_schedule import end_name
from polysci.space.schedule import Schedule
from polysci.target.isas import isa_of
from polysci.target.microkernels import HeaderSet
from polysci.text.tables import shorten


@dataclass(frozen=True)
class LoweredPrimitive:
    """A primitive as loop IR, with its symbol and schedule.

    ``header_set`` goes before its text, and ``beside`` are headers that it needs beyond those.
    ``workspace`` and ``packed`` are bytes. ``columns``: where weights can be packed some columns at
    a time, the elements of a column and the number of columns. ``packing`` is the loop IR of the
    function that packs weights, whatever the symbol; empty where other functions take part.
    ``ends`` are dimensions whose ends calls are told.
    """

    module: LoopModule = field(hash=False)  # which is large
    symbol: str
    header_set: HeaderSet
    schedule: Schedule
    precision: Precision
    team: Team = Team.OWN
    beside: tuple[str, ...] = ()
    workspace: int = 0
    packed: int = 0
    by_rows: bool = False
    columns: tuple[int, int] | None = None
    packing: str = ""
    ends: tuple[str, ...] = ()

    def __repr__(self) -> str:
        symbol, schedule = shorten(self.symbol), shorten(str(self.schedule), 120)
        return f"{type(self).__name__}({symbol!r}, {schedule!r}, {self.header_set})"

    @property
    def isa(self) -> str:
        return self.header_set.isa

    @property
    def key(self) -> str:
        """Return a word that primitives of one file have in common."""
        return str(self.header_set)

    @property
    def pool(self) -> bool:
        """Return whether its last argument is the team of threads that call it."""
        return self.team is Team.POOL

    @property
    def functions(self) -> tuple[Function, ...]:
        """Its entry points, whatever its symbol."""
        ends = tuple(map(end_name, self.ends))
        return functions(self.precision, by_rows=self.by_rows, team=self.pool, ends=ends)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The C identifiers of the entry points."""
        return tuple(function.name(self.symbol) for function in self.functions)


def lower_problem(
    problem: Problem, schedule: Schedule, threads: int = 1, options: EmitOptions = PLAIN
) -> LoweredPrimitive:
    """Return the loop IR of a problem under a schedule of any algorithm.

    Raises IllegalScheduleError, SpecError or UnsupportedError.
    """
    algorithm = algorithm_of(schedule)
    primitive = algorithm.lower(algorithm.resolve(problem, schedule, threads), options)
    unit = unit_of(primitive.header_set)
    parts = (
        replace(part, unit=unit) if isinstance(part, LoopFunction) else part
        for part in primitive.module.parts
    )
    return replace(primitive, module=replace(primitive.module, parts=tuple(parts)))


def unit_of(headers: HeaderSet) -> Unit:
    """Return what a choice of headers decides for microkernels."""
    isa, signed = isa_of(headers.isa), headers.x == "s8"
    flip = 0
    if headers.compute == "i8" and isa.tile_registers is None:
        of_signed = isa.machine in ("aarch64", "arm")  # whose units take signed numbers
        flip = (0 if signed else -0x80) if of_signed else (0x80 if signed else 0)
    return Unit(
        isa.lanes_f32, headers.compute, headers.x, headers.y, headers.packed_copy, flip,
        isa.tile_registers is not None, headers.compute in isa.matrices, headers.w,
    )  # fmt: skip


def share_turns(
    loops: Mapping[str, tuple[int, int]], threads: int, body: Sequence[LoopStatement]
) -> For:
    """Return one loop over a thread's share of all turns of some loops, the outer one first.

    Each has turns and a step by its dimension, whose iterator ``body`` reads.
    """
    task, origins, below = Variable("task"), list[LoopStatement](), 1
    for dim, (turns, step) in reversed([*loops.items()]):
        origins.insert(0, Let(iterator(dim).name, task // below % turns * step))
        below *= turns
    first, last = thread_share(below, threads)
    return loop("task", last, *origins, *body, start=first)
