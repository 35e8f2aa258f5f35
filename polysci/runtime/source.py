"""Primitives with the C that is printed from their loop IR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from polysci.errors import SpecError
from polysci.loop_ir.interface import columns_function
from polysci.loop_ir.nodes import join
from polysci.lower.algorithm import PLAIN, EmitOptions
from polysci.lower.lowering import LoweredPrimitive, lower_problem
from polysci.ops.problem import Problem
from polysci.printers import devices
from polysci.printers.c import print_file, print_primitive
from polysci.printers.interface import declare
from polysci.space.schedule import Schedule
from polysci.target.isas import isa_of


@dataclass(frozen=True, repr=False)
class Source(LoweredPrimitive):
    """A primitive whose C is printed when it is asked for."""

    @classmethod
    def of(cls, primitive: LoweredPrimitive) -> Source:
        """Return the source of a primitive."""
        return cls(**vars(primitive))

    @property
    def declarations(self) -> str:
        """The C declarations of the entry points, and of what packs some columns."""
        columns = [columns_function(self.precision)] * bool(self.columns)
        return declare((*self.functions, *columns), self.symbol)

    @cached_property
    def text(self) -> str:
        """The C of its functions, without headers."""
        return print_primitive(self.module, self.functions, self.symbol, self.team)

    @property
    def file(self) -> str:
        """A complete C file that needs nothing but a C compiler."""
        return assemble([self])


def assemble(sources: Sequence[Source]) -> str:
    """Return one file of several primitives; line 1, or 2 of a device's, is the first schedule.

    Those in C share headers.
    """
    sets = list(dict.fromkeys(source.header_set for source in sources))
    beside = dict.fromkeys(name for source in sources for name in source.beside)
    if isa_of(sets[0].isa).language != "c":
        module = join(source.module for source in sources)
        symbols = [symbol for source in sources for symbol in source.symbols]
        return devices.print_file(str(sources[0].schedule), sets, [*beside], module, symbols)
    if len(sets) != 1:
        raise SpecError(
            f"one C file holds one ISA and one precision, not {', '.join(map(str, sets))}"
        )
    texts = [source.text for source in sources]
    return print_file(str(sources[0].schedule), sets[0], tuple(beside), texts)


def emit(
    problem: Problem, schedule: Schedule, threads: int = 1, options: EmitOptions = PLAIN
) -> Source:
    """Return the source of a problem under a schedule of any algorithm.

    Raises IllegalScheduleError, SpecError or UnsupportedError.
    """
    return Source.of(lower_problem(problem, schedule, threads, options))
