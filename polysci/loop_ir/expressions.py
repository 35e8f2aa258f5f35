"""Element expressions: an element of a tensor as a function of elements of other tensors.

Axis ``a`` of the tensor that is defined runs over iterator ``i{a}``; a Reduce has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from polysci.numerics.affine import Affine


@dataclass(frozen=True, slots=True)
class Lookup:
    """An index out of a table: ``table[at]``."""

    table: tuple[int, ...]
    at: Affine

    def __str__(self) -> str:
        return f"table{len(self.table)}[{self.at}]"


@dataclass(frozen=True, slots=True)
class Computed:
    """An index out of data: the whole number ``at``; a negative one counts from the axis' end.

    What lies outside the ``extent`` elements of the axis is moved to its nearest end, so that no
    data makes a network read or write outside a tensor.
    """

    at: Expr
    extent: int

    def __str__(self) -> str:
        return f"<{self.at}>"


Index = Affine | Lookup | Computed


@dataclass(frozen=True, slots=True)
class Guard:
    """``0 <= at < extent``."""

    at: Affine
    extent: int

    def __str__(self) -> str:
        return f"0 <= {self.at} < {self.extent}"


@dataclass(frozen=True, slots=True)
class Number:
    """A constant."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:.9g}"


@dataclass(frozen=True, slots=True)
class Position:
    """The value of a form in iterators, as a whole number of 64 bits."""

    at: Affine

    def __str__(self) -> str:
        return f"({self.at})"


@dataclass(frozen=True, slots=True)
class Load:
    """An element of a tensor."""

    tensor: str
    index: tuple[Index, ...]

    def __str__(self) -> str:
        return f"{self.tensor}[{', '.join(map(str, self.index))}]"


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar function applied to values."""

    function: str
    arguments: tuple[Expr, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True, slots=True)
class Where:
    """``body`` where all guards hold, else ``otherwise``; ``body`` is not read there."""

    guards: tuple[Guard, ...]
    body: Expr
    otherwise: Expr

    def __str__(self) -> str:
        return f"({' and '.join(map(str, self.guards))} ? {self.body} : {self.otherwise})"


@dataclass(frozen=True, slots=True)
class Reduce:
    """``body`` over iterators, as far as all guards hold: by ``add``, ``mul``, ``max`` or ``min``.

    By one of ``functions.PLACES``, the place of one of its values. ``ends``, by iterator: sizes of
    a run at which some of them end.
    """

    function: str
    over: tuple[tuple[str, int], ...]
    body: Expr
    guards: tuple[Guard, ...] = ()
    ends: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        over = ", ".join(f"{name}<{extent}" for name, extent in self.over)
        guards = "".join(f", {guard}" for guard in self.guards)
        return f"{self.function}({over}{guards}: {self.body})"


Expr = Number | Position | Load | Apply | Where | Reduce


@lru_cache(maxsize=256)
def axis(number: int) -> Affine:
    """Return the iterator of an axis."""
    return Affine(((f"i{number}", 1),))


def constant(value: int) -> Affine:
    return Affine((), value)


def combine(terms: Mapping[str, int], const: int = 0) -> Affine:
    """Return ``sum(coef * iterator) + const``, terms in the order of their names."""
    return Affine(tuple(sorted((n, c) for n, c in terms.items() if c)), const)


def substitute(index: Affine, values: Mapping[str, Affine]) -> Affine:
    """Return an affine form with other affine forms for its iterators."""
    terms, const = dict[str, int](), index.const
    for name, coef in index.terms:
        value = values.get(name, Affine(((name, 1),)))
        const += coef * value.const
        for inner, factor in value.terms:
            terms[inner] = terms.get(inner, 0) + coef * factor
    return combine(terms, const)


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the expressions directly inside an expression."""
    if isinstance(expr, Apply):
        return expr.arguments
    if isinstance(expr, Load):
        return tuple([part.at for part in expr.index if isinstance(part, Computed)])
    if isinstance(expr, Where):
        return expr.body, expr.otherwise
    return (expr.body,) if isinstance(expr, Reduce) else ()


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield an expression and all inside it, each before its parts."""
    todo = [expr]
    while todo:
        part = todo.pop()
        yield part
        if inside := children(part):
            todo += inside[::-1]


def loads(expr: Expr) -> list[Load]:
    """Return all elements that an expression reads, those for subscripts included."""
    return [part for part in walk(expr) if isinstance(part, Load)]


def reductions(expr: Expr) -> list[Reduce]:
    return [part for part in walk(expr) if isinstance(part, Reduce)]


def rewrite(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Return an expression with ``change`` applied to all inside, the innermost first."""
    match expr:
        case Load(_, index) if children(expr):
            expr = replace(expr, index=tuple(
                replace(subscript, at=rewrite(subscript.at, change))
                if isinstance(subscript, Computed) else subscript
                for subscript in index
            ))  # fmt: skip
        case Apply(_, arguments):
            expr = replace(
                expr, arguments=tuple(rewrite(argument, change) for argument in arguments)
            )
        case Where(_, body, otherwise):
            expr = replace(expr, body=rewrite(body, change), otherwise=rewrite(otherwise, change))
        case Reduce(_, _, body, _):
            expr = replace(expr, body=rewrite(body, change))
    return change(expr)


def shift(expr: Expr, values: Mapping[str, Affine]) -> Expr:
    """Return an expression with other affine forms for its iterators."""

    def change(part: Expr) -> Expr:
        match part:
            case Load(_, index):
                return replace(
                    part, index=tuple(shift_index(subscript, values) for subscript in index)
                )
            case Position(at):
                return Position(substitute(at, values))
            case Where(guards, _, _) | Reduce(_, _, _, guards):
                return replace(part, guards=tuple(
                    replace(guard, at=substitute(guard.at, values)) for guard in guards
                ))  # fmt: skip
            case _:
                return part

    return rewrite(expr, change)


def shift_index(index: Index, values: Mapping[str, Affine]) -> Index:
    """Return an index with other affine forms for its iterators, but for computed ones."""
    match index:
        case Computed():
            return index
        case Lookup(_, at):
            return replace(index, at=substitute(at, values))
        case _:
            return substitute(index, values)


def apply(function: str, *arguments: Expr | float) -> Apply:
    """Return a function of values and numbers."""
    return Apply(function, tuple(
        Number(float(argument)) if isinstance(argument, int | float | np.number) else argument
        for argument in arguments
    ))  # fmt: skip
