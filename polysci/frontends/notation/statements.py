"""A statement -> the expression of an element of its target, and checks of computed subscripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, prod
from typing import Final, NamedTuple

import numpy as np

from polysci.frontends.notation.elaborate import (
    Elaborated,
    argument_type,
    combination_type,
    is_real,
    tensor_types,
    type_of,
)
from polysci.frontends.notation.ranges import StatementRanges, infer_shapes
from polysci.frontends.notation.syntax import (
    REDUCTIONS,
    Assignment,
    AxisExtent,
    Conversion,
    IndexRange,
    Literal,
    Operation,
    Symbol,
    TensorElement,
    Term,
    names_in,
    parts,
    walk_terms,
)
from polysci.loop_ir.element_values import evaluate
from polysci.loop_ir.expressions import (
    Apply,
    Computed,
    Expr,
    Guard,
    Index,
    Load,
    Number,
    Position,
    Reduce,
    Where,
    axis,
    combine,
    constant,
    substitute,
)
from polysci.loop_ir.functions import convert, kind_of_type
from polysci.numerics.affine import Affine
from polysci.numerics.scalar_functions import WHOLE, is_predicate

_REVERSED = {"less": "greater", "less_equal": "greater_equal"}
_TRUTHS = ("and", "or", "not")
# Element types of fewer bits than the numbers that they are computed with, and what fits into them.
_BITS = {"uint8": 8, "int8": 8, "uint16": 16, "int16": 16, "uint32": 32}
_WITHIN = {"uint16": ("uint8",), "int16": ("uint8", "int8"), "uint32": ("uint8", "uint16")}


@dataclass(slots=True)
class Elements:
    """The expression of an element of a statement's target, by position of the tensors it reads.

    ``types`` and ``shapes`` are of the tensors by their names in the text. With ``within`` the
    first element is that of the first values of all iterators, and the last that of the last ones.
    """

    ranges: StatementRanges
    types: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    within: bool = False
    rounding: str = ""  # to a number of the target's type, where elements are wider inside
    reads: list[str] = field(default_factory=list)
    iterators: dict[str, Affine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        firsts = self.firsts if self.within else (0,) * len(self.firsts)
        self.iterators = {
            name: combine(dict(axis(at).terms), first)
            for at, (name, first) in enumerate(
                zip(self.ranges.statement.index, firsts, strict=True)
            )
        }
        for at, name in enumerate(self.ranges.reductions):
            first, _ = self.ranges.bounds(name)
            self.iterators[name] = Affine(((f"r{at}", 1),), first)

    @property
    def firsts(self) -> tuple[int, ...]:
        """Return the first values of the target's iterators."""
        return tuple(self.ranges.bounds(name)[0] for name in self.ranges.statement.index)

    @property
    def extents(self) -> tuple[int, ...]:
        """Return the number of elements along each axis."""
        statement = self.ranges.statement
        if not self.within:
            return self.shapes[statement.tensor]
        bounds = [self.ranges.bounds(name) for name in statement.index]
        return tuple(end - first for first, end in bounds)

    @property
    def over(self) -> tuple[tuple[str, int], ...]:
        """Return the iterators of the sum, and how far they run."""
        bounds = [self.ranges.bounds(name) for name in self.ranges.reductions]
        return tuple((f"r{at}", end - first) for at, (first, end) in enumerate(bounds))

    def define(self, value: Expr) -> Expr:
        """Return the new element by the statement's value: or the old one outside its ranges."""
        return self.inside(self.combine(value))

    @property
    def computed_type(self) -> str:
        """Return the element type in which values are combined."""
        return combination_type(self.ranges.statement, self.types)

    def reduce(self) -> Expr:
        """Return the value of the statement, of the type in which it is combined."""
        statement, dtype = self.ranges.statement, self.computed_type
        function = REDUCTIONS.get(statement.operator)
        value, own = self.expr(statement.value)
        if function is None:
            return _convert(value, own, dtype)
        if function in ("argmin", "argmax"):
            over = self.over or (("r0", 1),)
            return Reduce(function, over, value)
        value = _convert(value, own, dtype)
        if not self.over:
            return value
        match value:
            case Where(guards, body, Number(0)) if function == "add":
                return Reduce(function, self.over, body, guards)
        return Reduce(function, self.over, value)

    def combine(self, value: Expr) -> Expr:
        """Combine a value with the element before, as the statement says, in the target's type."""
        statement, computed = self.ranges.statement, self.computed_type
        target = self.types[statement.tensor]
        if not statement.initialise:
            before = _convert(self.before(), target, computed)
            value = Apply(REDUCTIONS[statement.operator], (before, value))
        places = statement.operator in ("argmin=", "argmax=")
        value = value if places else _convert(value, computed, target)
        return Apply(self.rounding, (value,)) if self.rounding else value

    @property
    def reduced_type(self) -> str:
        """Return the element type of the result of ``reduce``."""
        places = self.ranges.statement.operator in ("argmin=", "argmax=")
        return "int32" if places else self.computed_type

    @property
    def is_combined(self) -> bool:
        """Tell whether every element is combined with what it was, as it is."""
        statement = self.ranges.statement
        same = self.computed_type == self.types[statement.tensor]
        return same and not statement.initialise and not self.range_guards

    def before(self) -> Expr:
        """Return the element that the target had."""
        return self.whole(self.ranges.statement.tensor)

    def whole(self, tensor: str) -> Load:
        """Return the element, at the place of the target's, of a tensor of its shape."""
        return self.load(tensor, tuple(map(axis, range(len(self.ranges.statement.index)))))

    def part(self, tensor: str) -> Load:
        """Return the element at the target's place of a tensor that ``within`` describes."""
        index = [combine(dict(axis(at).terms), -first) for at, first in enumerate(self.firsts)]
        return self.load(tensor, tuple(index))

    @property
    def range_guards(self) -> tuple[Guard, ...]:
        """Return the conditions under which iterators are in range, but for those always true."""
        statement = self.ranges.statement
        return tuple(
            Guard(combine(dict(axis(at).terms), -first), end - first)
            for at, name in enumerate(statement.index)
            if (bounds := self.ranges.bounds(name)) != (0, self.shapes[statement.tensor][at])
            for first, end in [bounds]
        )

    def inside(self, value: Expr) -> Expr:
        """Guard a value by the iterators' ranges; elsewhere the element before, or 0, stays."""
        guards = self.range_guards
        if not guards:
            return value
        return Where(guards, value, Number(0.0) if self.ranges.is_first else self.before())

    def load(self, tensor: str, index: tuple[Index, ...]) -> Load:
        if tensor not in self.reads:
            self.reads.append(tensor)
        return Load(str(self.reads.index(tensor)), index)

    def expr(self, term: Term) -> tuple[Expr, str]:
        """Return a term as an expression, and its element type."""
        dtype = type_of(term, self.types)
        match term:
            case Literal(int(value)) if int(float(value)) != value:
                return Position(constant(value)), dtype  # exact, where a double is not
            case Literal(value):
                return Number(float(value)), dtype
            case Symbol(name) if name in self.iterators:
                return Position(self.iterators[name]), dtype
            case Symbol(name):
                return Position(constant(self.ranges.work.sizes[name])), dtype
            case AxisExtent(tensor, number):
                return Position(constant(self.shapes[tensor][number])), dtype
            case Conversion(_, value):
                return _cast(*self.expr(value), dtype), dtype
            case TensorElement(tensor, index):
                places = zip(index, self.shapes[tensor], strict=True)
                return self.load(tensor, tuple(self.place(*place) for place in places)), dtype
            case Operation("select", (condition, body, otherwise)):
                parts = [_convert(*self.expr(part), dtype) for part in (body, otherwise)]
                guards = self.guards(condition)
                if guards is not None:
                    return Where(guards, parts[0], parts[1]), dtype
                return Apply("select", (self.truth(condition), *parts)), dtype
            case Operation(function, arguments) if function in _TRUTHS:
                return Apply(function, tuple(map(self.truth, arguments))), dtype
            case Operation(function, arguments):
                own = argument_type(function, arguments, self.types)
                values = tuple(_convert(*self.expr(part), own) for part in arguments)
                return _apply(function, values, own), dtype

    def truth(self, term: Term) -> Expr:
        """Return a term as 0 or 1."""
        return _convert(*self.expr(term), "bool")

    def place(self, term: Term, extent: int) -> Index:
        """Return a subscript: a linear form of iterators, or a value moved into the axis."""
        form = self.ranges.affine(term)
        if form is not None:
            return substitute(form, self.iterators)
        value, dtype = self.expr(term)
        short = kind_of_type(dtype) == WHOLE  # of which vectors gather twice as many elements
        return Computed(value if short else _convert(value, dtype, "int64"), extent)

    def guards(self, term: Term) -> tuple[Guard, ...] | None:
        """Return linear comparisons that all must hold as guards; None for other conditions."""
        if self.ranges.condition(term) is None:
            return None
        match term:
            case Operation("and", (left, right)):
                first, second = self.guards(left), self.guards(right)
                return None if first is None or second is None else (*first, *second)
            case Operation(function, (left, right)):
                if function in _REVERSED:
                    function, left, right = _REVERSED[function], right, left
                difference = self.ranges.affine(Operation("sub", (left, right)))
                if difference is None:
                    return None
                form = substitute(difference, self.iterators)
                if function == "equal":
                    return (Guard(form, 1),)
                form = Affine(form.terms, form.const - (function == "greater"))
                return (Guard(form, max(1, self.largest(form) + 1)),)
        return None

    def largest(self, form: Affine) -> int:
        """Return the largest value of a form over all iterators."""
        ends = {f"i{at}": size for at, size in enumerate(self.extents)}
        ends |= dict(self.over)
        return form.const + sum(max(0, coef * (ends[name] - 1)) for name, coef in form.terms)


def _apply(function: str, values: tuple[Expr, ...], own: str) -> Expr:
    """Apply a function to values of type ``own``; of real numbers alone in doubles, right now."""
    whole = Apply(function, values)
    if is_real(own) and not is_predicate(function) and all(map(_is_known, values)):
        with np.errstate(all="ignore"):
            value = float(evaluate(whole, (), {}))
        if isfinite(value):
            return Number(value)
    if all(isinstance(part, Number) for part in values):
        return Apply(function, (convert(values[0], "", own), *values[1:]))
    return whole


def _is_known(expr: Expr) -> bool:
    """Tell whether it is a number, or an extent."""
    match expr:
        case Number() | Position(Affine(())):
            return True
        case Apply(_, arguments):
            return all(map(_is_known, arguments))
    return False


def _convert(expr: Expr, source: str, target: str) -> Expr:
    """Convert a value from one element type to another; numbers are of any."""
    if isinstance(expr, Number) and target == "bool":
        return Number(float(expr.value != 0))
    if isinstance(expr, Number):
        rounds = is_real(source) and not is_real(target)
        return Number(_truncate(expr.value, target)) if rounds else expr
    if source == target:
        return expr
    alike = kind_of_type(source) == kind_of_type(target)
    return expr if alike and target in ("int32", "float32") else convert(expr, source, target)


def _truncate(value: float, target: str) -> float:
    """Round towards zero and saturate, as ``convert`` does."""
    largest = 2**31 - 1 if kind_of_type(target) == WHOLE else 2**63 - 1024  # as a double
    return float(int(min(max(value, -largest - 1), largest)))


def _cast(expr: Expr, source: str, target: str) -> Expr:
    """Cast a value: of whole numbers the last bits that the type has stay."""
    bits = _BITS.get(target, 0)
    if target in ("float16", "bf16") and source != target:
        value = convert(expr, source, target)
        return Apply("brain", (value,)) if target == "bf16" else value
    if not bits or source in (target, "bool") or source in _WITHIN.get(target, ()):
        return _convert(expr, source, target)
    last = Apply("bit_and", (convert(expr, source, target), Number(float(2**bits - 1))))
    if target.startswith("u"):
        return last
    sign = Number(float(2 ** (bits - 1)))
    return Apply("sub", (Apply("bit_xor", (last, sign)), sign))


OUTSIDE: Final = "outside_"  # begins the names of the counts
MOST_VALUES: Final = 1 << 20  # of iterators, at which subscripts are computed ahead


class ComputedSubscript(NamedTuple):
    """A computed subscript, and when it is read outside its axis."""

    element: TensorElement
    axis: int
    outside: Term


def check_subscripts(
    ranges: StatementRanges, types: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise SpecError for a computed subscript that leaves its axis whatever the data are."""
    for element, number, outside in _reads(ranges, types, ranges.statement.value, ()):
        subscript = element.index[number]
        names = [name for name in names_in(outside) if name in ranges.iterators]
        bounds = [ranges.bounds(name) for name in names]
        extents = [end - first for first, end in bounds]
        is_known = not any(isinstance(part, TensorElement) for part in walk_terms(outside))
        if not is_known or prod(extents) > MOST_VALUES:
            continue
        elements = Elements(ranges, types, shapes)
        elements.iterators = {
            name: Affine(((f"i{at}", 1),), first)
            for at, (name, (first, _)) in enumerate(zip(names, bounds, strict=True))
        }
        expr, _ = elements.expr(outside)
        if not (where := evaluate(expr, extents, {}).astype(bool)).any():
            continue
        values = np.asarray(evaluate(elements.expr(subscript)[0], extents, {}))[where]
        what = (
            f"{element}: {subscript} takes values {values.min()} to {values.max()}, "
            f"but axis {number} has 0 to {shapes[element.tensor][number] - 1}"
        )
        raise ranges.error(subscript.at or ranges.statement.at, what)


def with_index_checks(whole: Elaborated, sizes: Mapping[str, int]) -> Elaborated:
    """Add a count for each computed subscript, as outputs behind the comprehension's own."""
    inference, types = infer_shapes(whole, sizes), tensor_types(whole.comprehension)
    statements, counts = list[Assignment](), list[str]()
    for ranges in inference.statements:
        for read in _reads(ranges, types, ranges.statement.value, ()):
            counts.append(f"{OUTSIDE}{len(counts)}")
            statements.append(_count(ranges, counts[-1], read.outside))
        statements.append(ranges.statement)
    comprehension = replace(
        whole.comprehension, statements=tuple(statements),
        outputs=(*whole.comprehension.outputs, *counts),
    )  # fmt: skip
    ranks = {**whole.ranks, **dict.fromkeys(counts, 0)}
    return replace(whole, comprehension=comprehension, ranks=ranks)


def _count(ranges: StatementRanges, name: str, condition: Term) -> Assignment:
    """Return ``name +=! condition ? 1 : 0`` over the iterators of the condition."""
    bounds = tuple(
        IndexRange(iterator, Literal(first), Literal(end))
        for iterator in names_in(condition) if iterator in ranges.iterators
        for first, end in [ranges.bounds(iterator)]
    )  # fmt: skip
    value = Operation("select", (condition, Literal(1), Literal(0)), ranges.statement.at)
    return Assignment(name, (), "+=", True, value, bounds, (), ranges.statement.at)


def _reads(
    ranges: StatementRanges, types: Mapping[str, str], term: Term, conditions: tuple[Term, ...]
) -> Iterator[ComputedSubscript]:
    """Yield the computed subscripts of a term that is computed where all conditions hold."""
    if isinstance(term, Operation) and term.function == "select":
        chosen, body, otherwise = term.arguments
        yield from _reads(ranges, types, chosen, conditions)
        yield from _reads(ranges, types, body, (*conditions, chosen))
        yield from _reads(ranges, types, otherwise, (*conditions, Operation("not", (chosen,))))
        return
    for part in parts(term):
        yield from _reads(ranges, types, part, conditions)
    if isinstance(term, TensorElement):
        for number, part in enumerate(term.index):
            if ranges.affine(part) is None:
                if is_real(type_of(part, types)):
                    part = Conversion("int64", part)  # as it is read
                below = Operation("less", (part, Literal(0)))
                extent = AxisExtent(term.tensor, number)
                result: Term = Operation("or", (below, Operation("greater_equal", (part, extent))))
                for condition in conditions:
                    result = Operation("and", (condition, result))
                yield ComputedSubscript(element=term, axis=number, outside=result)
