"""What reductions gather their values in, and over which bounds, as C."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from math import prod

from polysci.loop_ir.expressions import Guard, Reduce, combine
from polysci.loop_ir.functions import FIRST, PLACES
from polysci.network.codegen.access import affine_text
from polysci.numerics.scalar_functions import EXACT, REAL, WHOLE, template
from polysci.polyhedral.affine import Affine
from polysci.printers import ctree as c

MOST_TERMS = 4096  # of a sum in f32: the error of longer ones would grow with their length
PART = "p"  # in the names of sums of so few, which are added to one in double
# Reduction to a place -> whether a value is beyond another one; which of equal places counts.
_BEYOND: Mapping[str, tuple[str, str]] = {
    "argmax": ("above", "<"),
    "argmin": ("below", "<"),
    "last_argmax": ("above", ">"),
    "last_argmin": ("below", ">"),
}


@dataclass(frozen=True, slots=True)
class Accumulator:
    """``acc`` of a kind, and ``place`` beside it where the place of a value is asked for.

    ``index`` is empty, or which one of several side by side it is; ``number`` tells those of
    several reductions apart.
    """

    function: str
    kind: str
    index: str = ""
    number: str = ""

    @property
    def variables(self) -> dict[str, tuple[str, str]]:
        """Name -> kind, and value before the first one."""
        function, _ = PLACES.get(self.function, (self.function, ""))
        variables = {f"acc{self.number}": (self.kind, FIRST[function][self.kind])}
        if self.function in PLACES:
            variables[f"place{self.number}"] = (WHOLE, "0")
        return variables

    def at(self, name: str) -> Accumulator:
        """One of several accumulators."""
        return replace(self, index=f"[{name}]")

    def declare(self, count: int) -> c.Body:
        """Several accumulators, without values."""
        kinds = {name: kind for name, (kind, _) in self.variables.items()}
        return [c.local_array(kind, name, count) for name, kind in kinds.items()]

    def define(self) -> c.Body:
        """A single accumulator with its first value."""
        return [
            c.Statement(f"{kind} {name} = {first}")
            for name, (kind, first) in self.variables.items()
        ]

    def start(self) -> list[str]:
        """Statements that give the first values."""
        return [f"{name}{self.index} = {first}" for name, (_, first) in self.variables.items()]

    def add(self, value: str, condition: str, place: str) -> list[str]:
        """Statements that take one more value, if a condition holds."""
        acc = f"acc{self.number}{self.index}"
        if self.function not in PLACES:
            total = self.call(self.function, acc, value)
            return [f"{acc} = {condition} ? {total} : {acc}" if condition else f"{acc} = {total}"]
        function, better = PLACES[self.function]
        if condition:
            value = f"{condition} ? {value} : {FIRST[function][self.kind]}"
        beats, where = self.call(better, "value", acc), f"place{self.number}{self.index}"
        return [
            f"const {self.kind} value = {value}",
            f"const int32_t better = {beats}",
            f"{acc} = better ? value : {acc}",
            f"{where} = better ? ({WHOLE})({place}) : {where}",
        ]

    def call(self, function: str, *values: str) -> str:
        """C text of a function of the accumulator's kind of number."""
        text = template(function, self.kind)
        assert text is not None, f"{function} of {self.kind}"
        return text.format(*values)

    def join(self, other: Accumulator) -> list[str]:
        """Statements that add what another accumulator gathered."""
        mine, theirs = f"acc{self.number}{self.index}", f"acc{self.number}{other.index}"
        if self.function not in PLACES:
            return [f"{mine} = {self.call(self.function, mine, theirs)}"]
        strictly, order = _BEYOND[self.function]
        where, there = (f"place{self.number}{acc.index}" for acc in (self, other))
        beats, loses = (self.call(strictly, *pair) for pair in ((theirs, mine), (mine, theirs)))
        return [
            f"const int32_t better = {beats} || (!{loses} && {there} {order} {where})",
            f"{where} = better ? {there} : {where}",
            f"{mine} = better ? {theirs} : {mine}",
        ]

    @property
    def part(self) -> Accumulator:
        """Of one in double, the same in f32 for MOST_TERMS at most, which ``add`` then adds."""
        return replace(self, kind=REAL, number=f"{PART}{self.number}")

    @property
    def result(self) -> str:
        return f"{'place' if self.function in PLACES else 'acc'}{self.number}{self.index}"

    @property
    def result_kind(self) -> str:
        return WHOLE if self.function in PLACES else self.kind


def accumulator_of(reduction: Reduce, kind: str, number: str = "") -> Accumulator:
    """Of values of a kind; in double where a sum in f32 would lose digits."""
    terms = prod(extent for _, extent in reduction.over)
    long = kind == REAL and reduction.function == "add" and terms > MOST_TERMS
    return Accumulator(reduction.function, EXACT if long else kind, number=number)


def place_in(reduction: Reduce) -> Affine:
    """The place of a value among all that is reduced, the last iterator the fastest."""
    steps, place = 1, dict[str, int]()
    for name, extent in reversed(reduction.over):
        place[name], steps = steps, steps * extent
    return combine(place)


def bounds_of(
    reduction: Reduce, inside: Container[str], busy: Callable[[Affine], Affine]
) -> tuple[dict[str, tuple[str, str]], list[Guard]]:
    """Bounds of loops over what is reduced, as far as guards give them; and other guards.

    ``inside`` are iterators of loops further in; ``busy`` drops those that are always 0.
    """
    extents = dict(reduction.over)
    bounds: dict[str, tuple[str, str]] = {}
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
) -> tuple[str, str]:
    """First value and end of an iterator for which a guard holds."""
    name, coef = own
    terms = tuple((n, -factor) for n, factor in guard.at.terms if n != name)
    low = affine_text(busy(Affine(terms, -guard.at.const)), {})
    high = affine_text(busy(Affine(terms, guard.extent - guard.at.const)), {})
    return f"ps_ceil_div({low}, {coef})", f"ps_least({extent}, ps_ceil_div({high}, {coef}))"
