"""What of an expression is the same in every turn of a loop."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from polysci.loop_ir.expressions import Expr, Load, Position, Where, children, loads, walk
from polysci.lower.stages.access import MemoryAccess


def unchanged_parts(
    exprs: Iterable[Expr], name: str, accesses: Mapping[Load, MemoryAccess], written: Container[str]
) -> list[Expr]:
    """The largest parts that read tensors, none of them ``written``, and never an iterator."""
    parts = [part for expr in exprs for part in _unchanged(expr, name, accesses)]
    return [
        part for part in dict.fromkeys(parts)
        if not any(load.tensor in written for load in loads(part))
    ]  # fmt: skip


def _unchanged(expr: Expr, name: str, accesses: Mapping[Load, MemoryAccess]) -> Iterator[Expr]:
    parts = [*walk(expr)]
    if not any(isinstance(part, Load) for part in parts):
        return
    if not any(_depends(part, name, accesses) for part in parts):
        yield expr
    elif not isinstance(expr, Where):  # whose parts are not computed everywhere
        for part in children(expr):
            yield from _unchanged(part, name, accesses)


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
