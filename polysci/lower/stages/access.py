"""The places of elements in memory, and what they say of loops: constants, transpositions."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from polysci.loop_ir.expressions import (
    Computed,
    Expr,
    Load,
    Position,
    Where,
    children,
    loads,
)
from polysci.loop_ir.index import Index, IndexLike, TableEntry, Variable, linear
from polysci.numerics.affine import Affine

Places = Mapping[str, IndexLike]  # iterators that stand for other integers
TURNED: Final = 64  # elements along each axis from which on a transposition goes by blocks
BLOCK: Final = 16  # of elements along both: a cache line of floats
ALIASED: Final = 256  # lines so many floats apart share few sets of an L1 of 8 ways


@dataclass(frozen=True, slots=True)
class MemoryAccess:
    """The place of an element in its buffer: a form in the iterators, and tables times strides.

    ``computed`` are subscripts out of data with their strides, which ``index`` leaves out.
    """

    terms: Mapping[str, int]
    const: int
    tables: tuple[tuple[str, Affine, int], ...] = ()  # name, index, stride
    computed: tuple[tuple[Computed, int], ...] = ()

    def index(self, places: Places) -> Index:
        """Return the place of the element without subscripts out of data."""
        at = {name: places.get(name, Variable(name)) for name in self.terms}
        total = linear(self.terms, at, self.const)
        for table, form, stride in self.tables:
            total += stride * TableEntry(table, (affine_index(form, places),))
        return total


def affine_index(form: Affine, places: Places) -> Index:
    """Return the value of an affine form."""
    terms = dict(form.terms)
    return linear(terms, {name: places.get(name, Variable(name)) for name in terms}, form.const)


def unchanged_parts(
    exprs: Iterable[Expr], name: str, accesses: Mapping[Load, MemoryAccess], written: Container[str]
) -> list[Expr]:
    """Return the largest parts that read tensors, none of them ``written``, and no iterator."""
    unchanged = dict[Expr, None]()
    for expr in exprs:
        reads, changes = _visit(expr, name, accesses, unchanged)
        if reads and not changes:
            unchanged[expr] = None
    return [part for part in unchanged if not any(load.tensor in written for load in loads(part))]


def _visit(
    expr: Expr, name: str, accesses: Mapping[Load, MemoryAccess], unchanged: dict[Expr, None]
) -> tuple[bool, bool]:
    """Return whether an expression reads tensors, and whether it differs along an iterator.

    The largest parts that do not differ, of one that does, are added to ``unchanged``, unless they
    are parts of a Where: these are not computed everywhere.
    """
    own = dict[Expr, None]() if isinstance(expr, Where) else unchanged
    inside = [(part, *_visit(part, name, accesses, own)) for part in children(expr)]
    changes = _depends(expr, name, accesses) or any(changed for _, _, changed in inside)
    if changes:
        own.update((part, None) for part, reads, changed in inside if reads and not changed)
    return isinstance(expr, Load) or any(reads for _, reads, _ in inside), changes


def _depends(part: Expr, name: str, accesses: Mapping[Load, MemoryAccess]) -> bool:
    match part:
        case Load():
            access = accesses[part]
            return name in access.terms or any(at.coef(name) for _, at, _ in access.tables)
        case Position(at):
            return at.coef(name) != 0
        case Where(guards, _, _):
            return any(guard.at.coef(name) for guard in guards)
        case _:
            return False


def turn_iterator(
    accesses: Collection[MemoryAccess], extents: Mapping[str, int], outer: Sequence[str], last: str
) -> str:
    """Return the iterator along which a tensor runs on that jumps from element to element of y.

    Empty where there is none, or a row of y reads few cache lines.
    """
    if extents[last] < TURNED:
        return ""
    across = [
        name
        for access in accesses
        for name in outer
        if access.terms.get(name) == 1 and abs(access.terms.get(last, 0)) >= TURNED
    ]
    return across[0] if across and extents[across[0]] >= TURNED else ""


def block_size(accesses: Collection[MemoryAccess], turned: str, last: str) -> int:
    """Return the extent of a block along both loops, so that its lines stay in the cache."""
    jumps = [access.terms.get(last, 0) for access in accesses if access.terms.get(turned) == 1]
    return BLOCK if any(jump % ALIASED for jump in jumps) else BLOCK // 2
