"""The elements that a stage reads, as isl relations, and what fusing may conclude from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import islpy as isl

from polysci.loop_ir.expressions import Expr, Guard, Load, Lookup, Position, Reduce, Where, children
from polysci.numerics.affine import Affine
from polysci.polyhedral.turns import in_turn

Extents = tuple[tuple[str, int], ...]


def iterators(shape: Sequence[int]) -> Extents:
    """The iterators of a stage that writes a tensor, and how far they run."""
    return tuple((f"i{number}", size) for number, size in enumerate(shape))


def uses(
    expr: Expr, tensor: str, around: Reduce | None = None
) -> Iterator[tuple[Load, Reduce | None]]:
    """Yield reads of a tensor, those for subscripts included, each with the reduction around it."""
    if isinstance(expr, Load) and expr.tensor == tensor:
        yield expr, around
    inside = expr if isinstance(expr, Reduce) else around
    for part in children(expr):
        yield from uses(part, tensor, inside)


def iterators_in(part: Expr) -> set[str]:
    """Return the iterators in the affine forms of an expression, without those of its parts."""
    match part:
        case Load(_, index):
            forms = [it.at if isinstance(it, Lookup) else it for it in index]
        case Position(at):
            forms = [at]
        case Where(guards, _, _) | Reduce(_, _, _, guards):
            forms = [guard.at for guard in guards]
        case _:
            forms = []
    return {name for form in forms if isinstance(form, Affine) for name, _ in form.terms}


@lru_cache(maxsize=4096)
@in_turn
def relation(domain: Extents, index: tuple[Affine, ...], guards: tuple[Guard, ...] = ()) -> isl.Map:
    """``{ [iterators] -> [element] }`` of one read; sizes of a run are parameters."""
    forms = [*index, *(guard.at for guard in guards)]
    free = sorted({name for form in forms for name, _ in form.terms} - {*dict(domain)})
    head = f"[{', '.join(free)}] -> " if free else ""
    names = ", ".join(name for name, _ in domain)
    bounds = [f"0 <= {name} < {size}" for name, size in domain]
    bounds += [f"0 <= {guard.at} < {guard.extent}" for guard in guards]
    places = ", ".join(map(str, index))
    return isl.Map(f"{head}{{ [{names}] -> [{places}] : {' and '.join(bounds) or 'true'} }}")


@lru_cache(maxsize=4096)
@in_turn
def is_within(
    at: Affine, end: str, domain: tuple[tuple[str, str], ...], conditions: tuple[str, ...],
    sizes: tuple[str, ...],
) -> bool:  # fmt: skip
    """Return whether ``0 <= at < end`` wherever conditions hold.

    ``domain`` has iterators, and where they end. ``sizes`` are names of integers, each behind a
    condition that it obeys.
    """
    names = ", ".join(name for name, _ in domain)
    known = [f"0 <= {name} < {stop}" for name, stop in domain]
    known += [*sizes[::2], *conditions, f"not (0 <= {at} and {at} < {end})"]
    head = f"[{', '.join(sizes[1::2])}] -> " if sizes else ""
    return bool(isl.Set(f"{head}{{ [{names}] : {' and '.join(known)} }}").is_empty())


def guard_text(guards: Sequence[Guard], *, hold: bool) -> str:
    """Return isl's text of the condition that all guards hold, or not all of them."""
    text = " and ".join(f"0 <= {guard.at} < {guard.extent}" for guard in guards)
    return (text if hold else f"not ({text})") if guards else "1 = 1"


def guarded_loads(
    expr: Expr, conditions: tuple[str, ...] = ()
) -> Iterator[tuple[Load, tuple[str, ...]]]:
    """Yield all reads of an expression with the conditions under which it reads."""
    inside = conditions
    match expr:
        case Load():
            yield expr, conditions
        case Where(guards, body, otherwise):
            yield from guarded_loads(body, (*conditions, guard_text(guards, hold=True)))
            yield from guarded_loads(otherwise, (*conditions, guard_text(guards, hold=False)))
            return
        case Reduce(guards=guards) if guards:
            inside = (*conditions, guard_text(guards, hold=True))
    for part in children(expr):
        yield from guarded_loads(part, inside)


def of_load(load: Load, domain: Extents, around: Reduce | None = None) -> isl.Map | None:
    """The relation of a read, the iterators of the reduction around it included.

    None where a table or data stands between, which isl does not see through.
    """
    index = [subscript for subscript in load.index if isinstance(subscript, Affine)]
    if len(index) < len(load.index):
        return None
    if around:
        domain = (*domain, *around.over)
    return relation(domain, tuple(index), around.guards if around else ())


@in_turn
def pointwise(load: Load, domain: Extents, shape: Sequence[int]) -> bool:
    """Return whether every iteration reads the element of its own place, and all elements are read.

    Then the only dependence between producer and consumer is from each iteration to itself: they
    may share a loop, whatever its order.
    """
    reads = of_load(load, domain)
    if reads is None or len(load.index) != len(domain):
        return False
    own = relation(iterators(shape), tuple(Affine(((name, 1),)) for name, _ in iterators(shape)))
    return bool(reads.is_equal(own))


@in_turn
def reads_once(load: Load, domain: Extents, around: Reduce | None) -> bool:
    """Return whether no two iterations read the same element, so that nothing is computed twice."""
    reads = of_load(load, domain, around)
    return reads is not None and bool(reads.is_injective())


@in_turn
def reads_within(
    load: Load, domain: Extents, around: Reduce | None, *, along: Mapping[int, int], low: Affine,
    extent: int,
) -> bool:  # fmt: skip
    """Return whether every read lies in the ``extent`` places from ``low`` on.

    ``along``: the axes that count for a place, and how many places lie between two of each.
    """
    reads = of_load(load, domain, around)
    if reads is None:
        return False
    names = ", ".join(name for name, _ in (*domain, *(around.over if around else ())))
    elements = ", ".join(f"h{number}" for number in range(len(load.index)))
    place = Affine(tuple((f"h{axis}", size) for axis, size in along.items()))
    window = isl.Map(f"{{ [{names}] -> [{elements}] : {low} <= {place} < {low} + {extent} }}")
    return bool(reads.is_subset(window))
