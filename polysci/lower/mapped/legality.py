"""The legality of what the items of a group do with the memory that they share."""

from __future__ import annotations

from collections.abc import Iterator

from polysci.errors import IllegalScheduleError, UnsupportedError
from polysci.loop_ir.index import (
    Comparison,
    Index,
    Linear,
    Modulo,
    Quotient,
    Variable,
    number_in,
    variables,
)
from polysci.loop_ir.nodes import (
    Declare,
    For,
    Invoke,
    LoopKind,
    LoopStatement,
    Scope,
    names_in,
    walk_statements,
)
from polysci.lower.mapped.accesses import ITEM, ROUTINES, ItemAccess, accesses_of
from polysci.polyhedral.barriers import SharedUse, find_race


def check_groups(body: LoopStatement) -> None:
    """Raise IllegalScheduleError unless barriers order all uses of what work-items share.

    Raises UnsupportedError for a routine whose accesses are not known.
    """
    statements = [*walk_statements(body)]
    shared = {it.buffer.name for it in statements
              if isinstance(it, Declare) and it.buffer.scope is Scope.LOCAL}  # fmt: skip
    for loop in statements:
        if isinstance(loop, For) and loop.kind is LoopKind.ITEMS:
            items = number_in(loop.end)
            assert items
            _check_routines(loop.body, shared)
            uses = [_use_of(it, items) for it in accesses_of(loop.body) if it.buffer in shared]
            if race := find_race(uses):
                raise IllegalScheduleError(str(race))


def _check_routines(item: LoopStatement, shared: set[str]) -> None:
    """Raise UnsupportedError for a routine that takes shared memory and is in no table."""
    for part in walk_statements(item):
        if isinstance(part, Invoke) and part.function not in ROUTINES and names_in(part) & shared:
            raise UnsupportedError(f"{part.function}: what it reads and writes is not known")


def _use_of(access: ItemAccess, items: int) -> SharedUse:
    """Return an access as isl text."""
    loops = {turns.name: turns.values for turns in access.loops}
    known = {ITEM, *loops}
    constraints = [f"0 <= {ITEM} < {items}", f"epoch = {_text(access.epoch)}"]
    for name, values in loops.items():
        constraints += [f"{values.start} <= {name} < {values.stop}",
                        f"({name} - {values.start}) mod {values.step} = 0"]  # fmt: skip
    constraints += [f"{_text(access.place)} <= e < {_text(access.place)} + {access.width}"]
    constraints += _conditions(access, known)
    names = f"exists {', '.join(loops)} : " if loops else ""
    text = f"{{ [{ITEM}] -> [epoch, e] : {names}{' and '.join(constraints)} }}"
    return SharedUse(access.buffer, access.writes, text)


def _conditions(access: ItemAccess, known: set[str]) -> Iterator[str]:
    """Yield the conditions that are about the item and its loops; others may hold."""
    for condition in access.conditions:
        assert isinstance(condition, Comparison)
        if variables(condition) <= known and condition.operator in ("<", "<=", ">", ">="):
            yield f"{_text(condition.left)} {condition.operator} {_text(condition.right)}"


def _text(index: Index) -> str:
    """Return an expression as isl writes it."""
    match index:
        case Variable(name):
            return name
        case Linear(terms, constant):
            parts = [f"{factor} * ({_text(term)})" for term, factor in terms]
            return " + ".join([*parts, str(constant)])
        case Quotient(left, right, _) if (number := number_in(right)) is not None:
            return f"floor(({_text(left)}) / {number})"
        case Modulo(left, right) if (number := number_in(right)) is not None:
            return f"(({_text(left)}) mod {number})"
        case _:
            raise IllegalScheduleError(f"{index}: no affine expression")
