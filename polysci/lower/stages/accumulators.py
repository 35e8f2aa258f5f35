"""Local values that reductions gather in, and the bounds of the loops over what is reduced."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from math import prod

from polysci.loop_ir.expressions import Guard, Reduce, combine
from polysci.loop_ir.functions import PLACES, neutral
from polysci.loop_ir.index import (
    TRUE,
    Condition,
    Index,
    as_index,
    ceil_divide,
    least,
    most,
)
from polysci.loop_ir.nodes import (
    Alternative,
    Assign,
    Buffer,
    Compute,
    Constant,
    Convert,
    Declare,
    Element,
    Let,
    LoopStatement,
    Named,
    Scope,
    Store,
    Value,
)
from polysci.lower.stages.access import affine_index
from polysci.numerics.affine import Affine
from polysci.numerics.scalar_functions import EXACT, REAL, WHOLE

MOST_TERMS = 4096  # of a sum in f32: the error of longer ones would grow with their length
PART = "p"  # in the names of sums of so few, which are added to one in double
# Reduction to a place -> whether a value is beyond another one; which of equal places counts.
_BEYOND: Mapping[str, tuple[str, str]] = {
    "argmax": ("above", "less"),
    "argmin": ("below", "less"),
    "last_argmax": ("above", "greater"),
    "last_argmin": ("below", "greater"),
}
Statements = list[LoopStatement]


@dataclass(frozen=True, slots=True)
class Accumulator:
    """``acc`` of a kind, and ``place`` beside it where the place of a value is asked for.

    ``index`` says which one of several side by side it is; ``number`` tells those of several
    reductions apart.
    """

    function: str
    kind: str
    index: Index | None = None
    number: str = ""

    @property
    def variables(self) -> dict[str, tuple[str, float]]:
        """Name -> kind, and value before the first one."""
        function, _ = PLACES.get(self.function, (self.function, ""))
        variables = {f"acc{self.number}": (self.kind, neutral(function, self.kind))}
        if self.function in PLACES:
            variables[f"place{self.number}"] = (WHOLE, 0)
        return variables

    def at(self, index: Index | int) -> Accumulator:
        """Return one of several accumulators."""
        return replace(self, index=as_index(index))

    def declare(self, count: int) -> Statements:
        """Declare several accumulators, without values."""
        return [
            Declare(Buffer(name, kind, as_index(count), Scope.STACK))
            for name, (kind, _) in self.variables.items()
        ]

    def define(self) -> Statements:
        """Define a single accumulator with its first value."""
        return [
            Let(name, Constant(first, kind), kind, const=False)
            for name, (kind, first) in self.variables.items()
        ]

    def start(self) -> Statements:
        """Return the statements that give the first values."""
        return [
            self.assign(name, Constant(first, kind))
            for name, (kind, first) in self.variables.items()
        ]

    def assign(self, name: str, value: Value) -> LoopStatement:
        """Return the statement that gives a variable a new value."""
        return Assign(name, value) if self.index is None else Store(name, self.index, value)

    def read(self, name: str) -> Value:
        """Return the value of a variable."""
        return Named(name) if self.index is None else Element(name, self.index)

    def add(self, value: Value, condition: Condition, place: Index) -> Statements:
        """Return the statements that take one more value, if a condition holds."""
        acc = self.read(f"acc{self.number}")
        if self.function not in PLACES:
            total = self.compute(self.function, acc, value)
            return [self.assign(f"acc{self.number}", choose(condition, total, acc))]
        function, better = PLACES[self.function]
        none = Constant(neutral(function, self.kind), self.kind)
        where = f"place{self.number}"
        return [
            Let("value", choose(condition, value, none), self.kind),
            Let("better", self.compute(better, Named("value"), acc), WHOLE),
            self.assign(f"acc{self.number}", Alternative(Named("better"), Named("value"), acc)),
            self.assign(
                where, Alternative(Named("better"), Convert(WHOLE, place), self.read(where))
            ),
        ]

    def compute(self, function: str, *values: Value) -> Value:
        """Return a function of values of the kind."""
        return Compute(function, self.kind, values, (self.kind,) * len(values))

    def join(self, other: Accumulator) -> Statements:
        """Return the statements that add what another accumulator gathered."""
        name, where = f"acc{self.number}", f"place{self.number}"
        mine, theirs = self.read(name), other.read(name)
        if self.function not in PLACES:
            return [self.assign(name, self.compute(self.function, mine, theirs))]
        strictly, order = _BEYOND[self.function]
        here, there = self.read(where), other.read(where)
        beats, loses = (self.compute(strictly, *pair) for pair in ((theirs, mine), (mine, theirs)))
        first = _whole(order, there, here)
        tie = _whole("and", _whole("not", loses), first)
        return [
            Let("better", _whole("or", beats, tie), WHOLE),
            self.assign(where, Alternative(Named("better"), there, here)),
            self.assign(name, Alternative(Named("better"), theirs, mine)),
        ]

    @property
    def part(self) -> Accumulator:
        """The accumulator in f32 of at most MOST_TERMS values, which one in double then adds."""
        return replace(self, kind=REAL, number=f"{PART}{self.number}")

    @property
    def result(self) -> Value:
        return self.read(f"{'place' if self.function in PLACES else 'acc'}{self.number}")

    @property
    def result_kind(self) -> str:
        return WHOLE if self.function in PLACES else self.kind


def choose(condition: Condition, then: Value, otherwise: Value) -> Value:
    """Return one of two values, by a condition."""
    return then if condition == TRUE else Alternative(condition, then, otherwise)


def _whole(function: str, *values: Value) -> Value:
    return Compute(function, WHOLE, values, (WHOLE,) * len(values))


def accumulator_of(reduction: Reduce, kind: str, number: str) -> Accumulator:
    """Return the accumulator of values of a kind; in double where a sum in f32 loses digits."""
    terms = prod(extent for _, extent in reduction.over)
    long = kind == REAL and reduction.function == "add" and terms > MOST_TERMS
    return Accumulator(reduction.function, EXACT if long else kind, number=number)


def place_in(reduction: Reduce) -> Affine:
    """Return the place of a value among all that is reduced, the last iterator the fastest."""
    steps, place = 1, dict[str, int]()
    for name, extent in reversed(reduction.over):
        place[name], steps = steps, steps * extent
    return combine(place)


def bounds_of(
    reduction: Reduce, inside: Container[str], busy: Callable[[Affine], Affine]
) -> tuple[dict[str, tuple[Index, Index]], list[Guard]]:
    """Return bounds of loops over what is reduced, as far as guards give them; and other guards.

    ``inside`` are iterators of loops further in; ``busy`` drops those that are always 0.
    """
    extents = dict(reduction.over)
    bounds: dict[str, tuple[Index, Index]] = {}
    rest: list[Guard] = []
    for guard in reduction.guards:
        own = [(n, coef) for n, coef in guard.at.terms if n in extents]
        others = any(n in inside for n, _ in guard.at.terms)
        if len(own) == 1 and own[0][1] > 0 and not others and own[0][0] not in bounds:
            bounds[own[0][0]] = _bounds(guard, own[0], extents[own[0][0]], busy)
        else:
            rest.append(guard)
    return bounds, rest


def _bounds(
    guard: Guard, own: tuple[str, int], extent: int, busy: Callable[[Affine], Affine]
) -> tuple[Index, Index]:
    """Return the first value and the end of an iterator for which a guard holds."""
    name, coef = own
    terms = tuple((n, -factor) for n, factor in guard.at.terms if n != name)
    low = affine_index(busy(Affine(terms, -guard.at.const)), {})
    high = affine_index(busy(Affine(terms, guard.extent - guard.at.const)), {})
    return most(0, ceil_divide(low, coef)), least(extent, ceil_divide(high, coef))
