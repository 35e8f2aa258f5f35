"""Primitives as C: prototypes, functions that first ask for the instruction set, whole files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from polysci.loop_ir.nodes import LoopFunction, LoopModule
from polysci.printers import ctree as c
from polysci.printers.c import CPrinter
from polysci.printers.definitions import arrange
from polysci.printers.headers import headers
from polysci.printers.interface import NO_ISA, Function, Role, declare
from polysci.printers.openmp import Team
from polysci.target import microkernels
from polysci.target.microkernels import HeaderSet

# What an entry point does on a CPU that lacks the instruction set of its code.
_REFUSALS: Mapping[Role, str] = MappingProxyType(
    {"run": f"return {NO_ISA}", "pack_weights": "return"}
)


def print_primitive(
    module: LoopModule, entries: Sequence[Function], symbol: str, team: Team
) -> str:
    """Return the C of a primitive's functions behind the prototypes of its ``entries``."""
    printer, refusals = CPrinter(team), _refusals(entries, symbol)
    definitions = (
        printer.function(part, refusals.get(part.name, []))
        if isinstance(part, LoopFunction)
        else printer.part(part)
        for part in module.parts
    )
    return "\n".join([declare(entries, symbol), *(f"{c.text(part)}\n" for part in definitions)])


def _refusals(entries: Sequence[Function], symbol: str) -> dict[str, c.Body]:
    """Return the first statements of entry points that run code of the instruction set."""
    return {
        row.name(symbol): [c.when("!PS_CPU_OK()", c.Block([c.Statement(_REFUSALS[row.role])]))]
        for row in entries
        if row.role in _REFUSALS
    }


def print_file(
    title: str, header_set: HeaderSet, beside: Sequence[str], texts: Sequence[str]
) -> str:
    """Return a C file of primitives with what they use of their headers; ``title`` is line 1."""
    needed = [headers(header_set), *map(microkernels.header, beside)]
    code = arrange(needed, "\n".join(texts))
    return f"/* {title} */\n{code}"
