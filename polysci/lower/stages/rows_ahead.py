"""Rows of large tables that data chooses: asked for some turns before they are read.

No hardware foresees them, and memory answers many questions at a time. What a turn reads so many
turns later, its subscripts say now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from polysci.loop_ir.expressions import Load, loads
from polysci.loop_ir.index import Index, IndexLike, Variable, as_index, least
from polysci.loop_ir.nodes import Address, Buffer, Named, Point, Prefetch
from polysci.lower.stages.access import MemoryAccess, Places
from polysci.lower.stages.accumulators import Statements
from polysci.numerics.arrays import LINE
from polysci.numerics.dtypes import C_TYPES
from polysci.program.stages import Value
from polysci.target.coefficients import prior_of

MOST_TURNS: Final = 16  # between what is asked for and what is read: a policy for short rows


@dataclass(frozen=True, slots=True)
class LaterAccess(MemoryAccess):
    """An element as a later turn reads it, or the last one that any turn reads."""

    last: int = 0

    def index(self, places: Places) -> Index:
        return least(MemoryAccess.index(self, places), self.last)


class Lowering(Protocol):
    """A stage on its way to loop IR: what it reads, and where that lies."""

    accesses: dict[Load, MemoryAccess]

    @property
    def dtypes(self) -> Mapping[str, str]: ...

    def pointer(self, load: Load) -> str: ...

    def subscript(self, access: MemoryAccess, places: Places) -> Index: ...


def rows_ahead(
    lowering: Lowering, extents: Mapping[str, int], loops: tuple[str, str],
    row: tuple[IndexLike, int],
) -> Statements:  # fmt: skip
    """Return statements that ask for rows of tables that later turns of a loop read.

    ``loops`` are that one and the one inside, which runs along ``row``: its value at the first
    element, and how many these are.
    """
    lines, known = Statements(), lowering.accesses
    for load, access in known.items():
        if not access.computed:
            continue
        dtype = lowering.dtypes[load.tensor]
        item = Value(load.tensor, (), dtype).item
        if later := _later(access, item, known, extents, loops):
            turn, inner = loops
            places = {turn: Variable(turn) + _turns(row[1] * item), inner: row[0]}
            lowering.accesses = {**known, **later}
            at = lowering.subscript(access, places)
            lowering.accesses = known
            address = Address(Named(lowering.pointer(load)), at)
            lines += _asks(f"ahead{len(lines)}", C_TYPES[dtype], address, row[1], item)
    return lines


def _later(
    access: MemoryAccess, item: int, accesses: Mapping[Load, MemoryAccess],
    extents: Mapping[str, int], loops: tuple[str, str],
) -> Mapping[Load, MemoryAccess]:  # fmt: skip
    """Return the loads inside subscripts out of data, as later turns of a loop read them.

    ``loops`` are that one and the one inside. Empty where the latter does not read a row of a
    large table of elements of ``item`` bytes that the former chooses.
    """
    turn, inner = loops
    if max((it.extent * abs(step) * item for it, step in access.computed), default=0) < prior_of(
        "large_table"
    ):
        return {}
    inside = [load for index, _ in access.computed for load in loads(index.at)]
    forms = [accesses[load] for load in inside]
    simple = all(
        not form.computed and not form.tables and inner not in form.terms
        and all(name in extents and coef > 0 for name, coef in form.terms.items())
        for form in forms
    )  # fmt: skip
    if not simple or access.terms.get(inner) != 1 or not any(turn in it.terms for it in forms):
        return {}
    later = dict[Load, MemoryAccess]()
    for load, form in zip(inside, forms, strict=True):
        last = form.const + sum(coef * (extents[name] - 1) for name, coef in form.terms.items())
        later[load] = LaterAccess(form.terms, form.const, last=last)
    return later


def _turns(row: int) -> int:
    """Return how many turns that read rows of so many bytes lie in between."""
    return max(1, min(MOST_TURNS, int(prior_of("table_ahead")) // row))


def _asks(name: str, kind: str, address: Address, count: int, item: int) -> Statements:
    """Return statements that ask for elements of a kind, which may begin anywhere in a line.

    ``name`` is that of the address.
    """
    most = int(prior_of("row_lines"))
    starts = [*range(0, count, LINE // item)][:most]
    if len(starts) < most:
        starts.append(count - 1)
    return [
        Point(Buffer(name, kind, const=True), address),
        *(Prefetch(Address(Named(name), as_index(start))) for start in starts),
    ]
