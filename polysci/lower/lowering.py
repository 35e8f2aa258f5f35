"""A problem under a schedule of any algorithm as loop IR, and the C that is printed from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from polysci.errors import SpecError
from polysci.loop_ir.interface import Function, columns_function, functions
from polysci.loop_ir.nodes import LoopModule, Team
from polysci.lower.algorithm import PLAIN, EmitOptions
from polysci.lower.registry import algorithm_of
from polysci.numerics.dtypes import Precision
from polysci.ops.problem import Problem
from polysci.printers import interface
from polysci.printers.c import print_file, print_primitive
from polysci.space.schedule import Schedule
from polysci.target.microkernels import HeaderSet
from polysci.text.tables import shorten


@dataclass(frozen=True)
class Source:
    """A primitive as loop IR, with its C symbol and schedule; C is printed when it is asked for.

    ``header_set`` goes before its text, and ``beside`` are headers that it needs beyond those.
    ``workspace`` and ``packed`` are bytes. ``columns``: where weights can be packed some columns at
    a time, the elements of a column and the number of columns. ``packing`` is the loop IR of the
    function that packs weights, whatever the symbol; empty where other functions take part.
    """

    module: LoopModule = field(hash=False)  # whose types are a dict
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

    def __repr__(self) -> str:
        symbol, schedule = shorten(self.symbol), shorten(str(self.schedule), 120)
        return f"Source({symbol!r}, {schedule!r}, {self.header_set})"

    @property
    def isa(self) -> str:
        return self.header_set.isa

    @property
    def key(self) -> str:
        """Return a word that sources of one C file have in common."""
        return str(self.header_set)

    @property
    def pool(self) -> bool:
        """Return whether its last argument is the team of threads that call it."""
        return self.team is Team.POOL

    @property
    def functions(self) -> tuple[Function, ...]:
        """Its entry points, whatever its symbol."""
        return functions(self.precision, by_rows=self.by_rows, team=self.pool)

    @property
    def declarations(self) -> str:
        """The C declarations of the entry points, and of what packs some columns."""
        columns = [columns_function(self.precision)] * bool(self.columns)
        return interface.declare((*self.functions, *columns), self.symbol)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The C identifiers of the entry points."""
        return tuple(function.name(self.symbol) for function in self.functions)

    @cached_property
    def text(self) -> str:
        """The C of its functions, without headers."""
        return print_primitive(self.module, self.functions, self.symbol, self.team)

    @property
    def file(self) -> str:
        """A complete C file that needs nothing but a C compiler."""
        return assemble([self])


def assemble(sources: Sequence[Source]) -> str:
    """Return one C file of several primitives that share headers; line 1 is the first schedule."""
    sets = list(dict.fromkeys(source.header_set for source in sources))
    if len(sets) != 1:
        raise SpecError(
            f"one C file holds one ISA and one precision, not {', '.join(map(str, sets))}"
        )
    beside = dict.fromkeys(name for source in sources for name in source.beside)
    texts = [source.text for source in sources]
    return print_file(str(sources[0].schedule), sets[0], tuple(beside), texts)


def emit(
    problem: Problem, schedule: Schedule, threads: int = 1, options: EmitOptions = PLAIN
) -> Source:
    """Return the source of a problem under a schedule of any algorithm.

    Raises IllegalScheduleError, SpecError or UnsupportedError.
    """
    algorithm = algorithm_of(schedule)
    return algorithm.lower(algorithm.resolve(problem, schedule, threads), options)
