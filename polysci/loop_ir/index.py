"""Integer expressions of loop IR: where loops begin and end, where elements lie, conditions.

Operators build them, constants fold, and sums are kept as coefficients of their terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final


class Index:
    """An integer of 64 bits; its operators take other indices and Python's integers."""

    __slots__ = ()

    def __add__(self, other: IndexLike) -> Index:
        return add(self, other)

    def __radd__(self, other: int) -> Index:
        return add(other, self)

    def __sub__(self, other: IndexLike) -> Index:
        return add(self, times(other, -1))

    def __rsub__(self, other: int) -> Index:
        return add(other, times(self, -1))

    def __neg__(self) -> Index:
        return times(self, -1)

    def __mul__(self, other: IndexLike) -> Index:
        return times(self, other)

    def __rmul__(self, other: int) -> Index:
        return times(self, other)

    def __floordiv__(self, other: IndexLike) -> Index:
        return divide(self, other)

    def __rfloordiv__(self, other: int) -> Index:
        return divide(other, self)

    def __mod__(self, other: IndexLike) -> Index:
        return remainder(self, other)


IndexLike = int | Index


@dataclass(frozen=True, slots=True)
class Variable(Index):
    """An iterator, a parameter or another integer by its name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Linear(Index):
    """``constant + sum coefficient * term``; no term is a constant or another such sum."""

    terms: tuple[tuple[Index, int], ...] = ()
    constant: int = 0

    def __str__(self) -> str:
        parts = [
            _scale_text(str(term), factor, isinstance(term, ATOMS)) for term, factor in self.terms
        ]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")


@dataclass(frozen=True, slots=True)
class Product(Index):
    """A product of two integers that both vary."""

    left: Index
    right: Index

    def __str__(self) -> str:
        return f"{_inner(self.left)} * {_inner(self.right)}"


@dataclass(frozen=True, slots=True)
class Quotient(Index):
    """An integer quotient, rounded to its ``floor`` or ``ceil``; ``down``: of a left side >= 0."""

    left: Index
    right: Index
    rounding: str = "down"

    def __str__(self) -> str:
        if self.rounding != "down":
            return f"{self.rounding}({self.left} / {_inner(self.right)})"
        return f"{_inner(self.left)} / {_inner(self.right)}"


@dataclass(frozen=True, slots=True)
class Modulo(Index):
    """The remainder of a division; neither side is negative."""

    left: Index
    right: Index

    def __str__(self) -> str:
        return f"{_inner(self.left)} % {_inner(self.right)}"


@dataclass(frozen=True, slots=True)
class Extreme(Index):
    """The smaller (``min``) or larger (``max``) of two integers."""

    function: str
    left: Index
    right: Index

    def __str__(self) -> str:
        return f"{self.function}({self.left}, {self.right})"


@dataclass(frozen=True, slots=True)
class Bits(Index):
    """Two integers combined bit by bit: ``operator`` is ``&``, ``|`` or ``^``."""

    operator: str
    left: Index
    right: Index

    def __str__(self) -> str:
        return f"{_inner(self.left)} {self.operator} {_inner(self.right)}"


@dataclass(frozen=True, slots=True)
class Select(Index):
    """One of two integers, by a condition."""

    condition: Condition
    then: Index
    otherwise: Index

    def __str__(self) -> str:
        return f"({self.condition} ? {self.then} : {self.otherwise})"


@dataclass(frozen=True, slots=True)
class Mapped(Index):
    """An integer function of integers by its name, as ``ps_column_at`` is."""

    function: str
    arguments: tuple[Index, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True, slots=True)
class TableEntry(Index):
    """An integer read from a table or another buffer, by the buffer's name."""

    buffer: str
    places: tuple[Index, ...]

    def __str__(self) -> str:
        return self.buffer + "".join(f"[{at}]" for at in self.places)


@dataclass(frozen=True, slots=True)
class Subscripts(Index):
    """The place of an element in an array of several axes, which is stored row by row."""

    places: tuple[Index, ...]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.places))


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two integers: ``operator`` is one of ``< <= > >= == !=``."""

    operator: str
    left: Index
    right: Index

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right}"


@dataclass(frozen=True, slots=True)
class Within:
    """``0 <= at < extent``, by one comparison."""

    at: Index
    extent: int

    def __str__(self) -> str:
        return f"0 <= {self.at} < {self.extent}"


@dataclass(frozen=True, slots=True)
class Flag:
    """A condition that stands in a variable or parameter, or is known: ``0`` or ``1``."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Supported:
    """The condition that the processor has the instructions that the code is for."""

    def __str__(self) -> str:
        return "supported"


@dataclass(frozen=True, slots=True)
class Every:
    """The condition that all of some conditions hold, two at least."""

    parts: tuple[Condition, ...]

    def __str__(self) -> str:
        return " and ".join(map(_nest_text, self.parts))


@dataclass(frozen=True, slots=True)
class Either:
    """The condition that at least one of some conditions holds, two at least."""

    parts: tuple[Condition, ...]

    def __str__(self) -> str:
        return " or ".join(map(_nest_text, self.parts))


@dataclass(frozen=True, slots=True)
class Negation:
    """The opposite of a condition."""

    part: Condition

    def __str__(self) -> str:
        return f"not {_nest_text(self.part)}"


Condition = Comparison | Within | Flag | Supported | Every | Either | Negation

ATOMS: Final = (Variable, Extreme, Mapped, TableEntry, Select)  # whose text needs no parentheses
ZERO: Final = Linear()
THREAD: Final = Variable("thread")  # the number of a thread among those that share loops
TRUE: Final = Flag("1")
FALSE: Final = Flag("0")
_COMPARE: Final = {
    "<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__,
    "==": int.__eq__, "!=": int.__ne__,
}  # fmt: skip


def as_index(value: IndexLike) -> Index:
    """Return an integer as an expression."""
    return Linear((), value) if isinstance(value, int) else value


def iterator(dim: str) -> Variable:
    """Return the variable that runs over a dimension: the code's own names end in no digit."""
    return Variable(f"{dim}0")


def thread_share(count: IndexLike, threads: int) -> tuple[Index, Index]:
    """Return first and end of a thread's share of so many turns; one thread takes all of them."""
    if threads == 1:
        return ZERO, as_index(count)
    return count * THREAD // threads, count * (THREAD + 1) // threads


def number_in(value: IndexLike) -> int | None:
    """Return the integer that an expression is, or None where it varies."""
    if isinstance(value, int):
        return value
    return value.constant if isinstance(value, Linear) and not value.terms else None


def add(left: IndexLike, right: IndexLike) -> Index:
    """Return a sum; terms keep the order in which they come."""
    if isinstance(left, int):
        left, right = right, left
    if isinstance(right, int):  # nothing to merge
        if isinstance(left, Linear):
            return _sum(left.terms, left.constant + right)
        if isinstance(left, int):
            return Linear((), left + right)
        return Linear(((left, 1),), right) if right else left
    terms, constant = dict[Index, int](), 0
    for value in (as_index(left), right):
        if isinstance(value, Linear):
            constant += value.constant
            for term, factor in value.terms:
                terms[term] = terms.get(term, 0) + factor
        else:
            terms[value] = terms.get(value, 0) + 1
    return _sum(terms.items(), constant)


def times(value: IndexLike, factor: IndexLike) -> Index:
    """Return a product."""
    known, count = number_in(value), number_in(factor)
    if known is not None and count is not None:
        return Linear((), known * count)
    if known is not None:
        value, count = factor, known
    if count is None:
        return Product(as_index(value), as_index(factor))
    if count == 0:
        return ZERO
    if isinstance(value, Linear):
        terms = tuple((term, count * own) for term, own in value.terms)
        return _sum(terms, count * value.constant)
    assert not isinstance(value, int)
    return value if count == 1 else Linear(((value, count),))


def linear(
    coefficients: Mapping[str, int], at: Mapping[str, IndexLike], constant: int = 0
) -> Index:
    """Return ``constant + sum coefficients[dim] * at[dim]`` over the dimensions of ``at``."""
    terms = dict[Index, int]()
    for dim, value in at.items():
        factor = coefficients.get(dim, 0)
        if isinstance(value, int):
            constant += factor * value
        elif factor and isinstance(value, Linear):
            constant += factor * value.constant
            for term, own in value.terms:
                terms[term] = terms.get(term, 0) + factor * own
        elif factor:
            terms[value] = terms.get(value, 0) + factor
    return _sum(terms.items(), constant)


def divide(left: IndexLike, right: IndexLike) -> Index:
    """Return the quotient of two integers that are not negative."""
    whole, parts = number_in(left), number_in(right)
    if parts == 1 or whole == 0:
        return as_index(left)
    if whole is not None and parts is not None:
        return Linear((), whole // parts)
    return Quotient(as_index(left), as_index(right))


def floor_divide(left: IndexLike, right: IndexLike) -> Index:
    """Return the quotient of any two integers, the second above 0, rounded down."""
    whole, parts = number_in(left), number_in(right)
    if whole is not None and parts is not None:
        return Linear((), whole // parts)
    return Quotient(as_index(left), as_index(right), "floor")


def ceil_divide(left: IndexLike, right: IndexLike) -> Index:
    """Return the quotient of any two integers, the second above 0, rounded up."""
    whole, parts = number_in(left), number_in(right)
    if parts == 1:
        return as_index(left)
    if whole is not None and parts is not None:
        return Linear((), -(-whole // parts))
    return Quotient(as_index(left), as_index(right), "ceil")


def remainder(left: IndexLike, right: IndexLike) -> Index:
    """Return the remainder of two integers that are not negative."""
    whole, parts = number_in(left), number_in(right)
    if parts == 1:
        return ZERO
    if whole is not None and parts is not None:
        return Linear((), whole % parts)
    return Modulo(as_index(left), as_index(right))


def least(left: IndexLike, right: IndexLike) -> Index:
    """Return the smaller one of two integers."""
    return _extreme("min", left, right)


def most(left: IndexLike, right: IndexLike) -> Index:
    """Return the larger one of two integers."""
    return _extreme("max", left, right)


def compare(left: IndexLike, operator: str, right: IndexLike) -> Condition:
    """Return a comparison; of known integers, whether it holds."""
    one, other = number_in(left), number_in(right)
    if one is not None and other is not None:
        return TRUE if _COMPARE[operator](one, other) else FALSE
    return Comparison(operator, as_index(left), as_index(right))


def every(conditions: Sequence[Condition]) -> Condition:
    """Return the conjunction of conditions, without those that are known to hold."""
    parts = tuple(part for part in conditions if part != TRUE)
    if FALSE in parts:
        return FALSE
    return parts[0] if len(parts) == 1 else Every(parts) if parts else TRUE


def either(conditions: Sequence[Condition]) -> Condition:
    """Return the disjunction of conditions, without those that are known not to hold."""
    parts = tuple(part for part in conditions if part != FALSE)
    if TRUE in parts:
        return TRUE
    return parts[0] if len(parts) == 1 else Either(parts) if parts else FALSE


def negate(condition: Condition) -> Condition:
    """Return the opposite of a condition."""
    if isinstance(condition, Negation):
        return condition.part
    if condition in (TRUE, FALSE):
        return FALSE if condition == TRUE else TRUE
    return Negation(condition)


def choose(condition: Condition, then: IndexLike, otherwise: IndexLike) -> Index:
    """Return one of two integers, by a condition."""
    if condition in (TRUE, FALSE):
        return as_index(then if condition == TRUE else otherwise)
    return Select(condition, as_index(then), as_index(otherwise))


def inside(at: IndexLike, extent: int) -> tuple[Condition, Condition]:
    """Return the conditions that ``0 <= at < extent``."""
    return compare(at, ">=", 0), compare(at, "<", extent)


def variables(expr: Index | Condition) -> set[str]:
    """Return the names that an expression reads."""
    match expr:
        case Variable(name) | Flag(name):
            return {name}
        case Supported():
            return set()
        case Linear(terms, _):
            return {name for term, _ in terms for name in variables(term)}
        case Mapped(_, parts) | Subscripts(parts, _):
            return {name for part in parts for name in variables(part)}
        case TableEntry(buffer, places):
            return {buffer} | {name for at in places for name in variables(at)}
        case Select(condition, then, otherwise):
            return variables(condition) | variables(then) | variables(otherwise)
        case Every(conditions) | Either(conditions):
            return {name for part in conditions for name in variables(part)}
        case Negation(part) | Within(part, _):
            return variables(part)
        case _:
            return variables(expr.left) | variables(expr.right)  # type: ignore[union-attr]


def _sum(terms: Iterable[tuple[Index, int]], constant: int) -> Index:
    """A sum of different terms in its simplest form: a single term of factor 1 is the sum."""
    kept = tuple([part for part in terms if part[1]])
    if len(kept) == 1 and kept[0][1] == 1 and not constant:
        return kept[0][0]
    return Linear(kept, constant)


def _extreme(function: str, left: IndexLike, right: IndexLike) -> Index:
    one, other = number_in(left), number_in(right)
    if one is not None and other is not None:
        return Linear((), min(one, other) if function == "min" else max(one, other))
    return Extreme(function, as_index(left), as_index(right))


def _scale_text(text: str, factor: int, atom: bool) -> str:
    text = text if atom else f"({text})"
    return {1: text, -1: f"-{text}"}.get(factor, f"{factor} * {text}")


def _inner(part: Index) -> str:
    return str(part) if isinstance(part, ATOMS) or number_in(part) is not None else f"({part})"


def _nest_text(part: Condition) -> str:
    return f"({part})" if isinstance(part, Every | Either) else str(part)
