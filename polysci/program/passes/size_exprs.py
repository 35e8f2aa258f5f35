"""Expressions with sizes in the place of numbers that differ between programs of other sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import isclose, isnan
from typing import Final, Self

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
    children,
    combine,
    constant,
)
from polysci.numerics.affine import Affine
from polysci.program.passes.size_axes import OtherSize
from polysci.program.passes.variation import VaryingSizeError, size_name
from polysci.program.stages import LoopStage, Program, Stage

CLOSE: Final = 1e-6  # numbers of f32 that are equal but for their rounding
Extents = Sequence[tuple[str, int]]  # iterators, and how far they run


@dataclass(frozen=True, slots=True)
class SizeSamples:
    """Sizes that differ with one, ``name``: by variable, those of a program and of others.

    ``stage`` is what refusals name.
    """

    name: str
    stage: str
    known: Mapping[str, Sequence[int]]
    variables: Mapping[str, str]

    @classmethod
    def of(cls, program: Program, name: str, stage: str, others: Sequence[OtherSize]) -> Self:
        """Return the sizes of programs; ``others`` are of one size each."""
        rows = {
            size: [span[-1], *(other.value(program, size) for other in others)]
            for size, span in program.spans.items() if len(span) > 1
        }  # fmt: skip
        known = {size: row for size, row in rows.items() if len({*row}) > 1}
        return cls(name, stage, known, {size: size_name(program, size) for size in known})

    def refuse(self, rule: str) -> VaryingSizeError:
        return VaryingSizeError(self.name, self.stage, rule)

    def named(self, extents: Sequence[int]) -> str:
        """Return the size that has these values; empty where none has."""
        return next((size for size, row in self.known.items() if [*row] == [*extents]), "")

    def expression(self, mine: Expr, theirs: Sequence[Expr], dtype: str) -> Expr:
        """Return an expression of all sizes, for elements of a type. Raises VaryingSizeError."""
        if any(_head(it) != _head(mine) for it in theirs):
            raise self.refuse("its expression depends on it")
        inside = [
            self.expression(own, there, dtype)
            for own, *there in zip(children(mine), *map(children, theirs), strict=True)
        ]
        match mine:
            case Number(value):
                others = [it.value for it in theirs if isinstance(it, Number)]
                return self.number(value, others, dtype)
            case Position(at):
                return Position(self.form(at, [it.at for it in theirs if isinstance(it, Position)]))
            case Load(_, index):
                parts = iter(inside)
                rows = zip(index, *(it.index for it in theirs if isinstance(it, Load)), strict=True)
                return replace(mine, index=tuple([
                    replace(own, at=next(parts)) if isinstance(own, Computed)
                    else self.subscript(own, there)
                    for own, *there in rows
                ]))  # fmt: skip
            case Apply():
                return replace(mine, arguments=tuple(inside))
            case Where(guards):
                rest = [it.guards for it in theirs if isinstance(it, Where)]
                return Where(self.guards(guards, rest), *inside)
            case Reduce(guards=guards):
                rest = [it.guards for it in theirs if isinstance(it, Reduce)]
                overs = [it.over for it in theirs if isinstance(it, Reduce)]
                return replace(
                    mine, body=inside[0], guards=self.guards(guards, rest),
                    ends=self.reduced(mine.over, overs),
                )  # fmt: skip

    def reduced(self, over: Extents, others: Sequence[Extents]) -> tuple[tuple[str, str], ...]:
        """Return the sizes at which iterators of a reduction end, by iterator."""
        ends = list[tuple[str, str]]()
        for own, *there in zip(over, *others, strict=True):
            row = [own[1], *(extent for _, extent in there)]
            if len({*row}) == 1:
                continue
            if not (size := self.named(row)):
                raise self.refuse(f"it reduces over {_listed(row)} elements")
            ends.append((own[0], size))
        return tuple(ends)

    def guards(self, own: Sequence[Guard], others: Sequence[Sequence[Guard]]) -> tuple[Guard, ...]:
        """Return guards of all sizes: an end that differs has one of its own."""
        guards = list[Guard]()
        for guard, *there in zip(own, *others, strict=True):
            at = self.form(guard.at, [it.at for it in there])
            guards.append(Guard(at, guard.extent))
            if any(it.extent != guard.extent for it in there):
                end = self.form(constant(guard.extent), [constant(it.extent) for it in there])
                left = {name: -coef for name, coef in at.terms}
                for name, coef in end.terms:
                    left[name] = left.get(name, 0) + coef
                guards.append(Guard(combine(left, end.const - at.const - 1), guard.extent))
        return tuple(guards)

    def number(self, own: float, others: Sequence[float], dtype: str) -> Expr:
        """Return what a number is: the same, or one with a size as a factor or divisor.

        Or with its square, as the pixels of square images.
        """
        if all(own == other or (isnan(own) and isnan(other)) for other in others):
            return Number(own)
        kind = "exact" if dtype == "float64" else "real"
        for power, (name, (most, *sizes)) in product((1, -1, 2, -2), self.known.items()):
            factor = own * float(most) ** power
            there = [it * float(size) ** power if size else 0.0
                     for it, size in zip(others, sizes, strict=True)]  # fmt: skip
            if all(isclose(factor, it, rel_tol=CLOSE) for it in there):
                position = Apply(kind, (Position(combine({self.variables[name]: 1})),))
                whole = round(factor) if isclose(factor, round(factor), rel_tol=CLOSE) else factor
                if power == -1 and dtype.startswith(("int", "uint")) and whole == int(whole):
                    return Position(combine({self.variables[name]: int(whole)}))
                expr: Expr = Number(float(whole))
                for _ in range(abs(power)):
                    expr = Apply("div" if power > 0 else "mul", (expr, position))
                return expr
        raise self.refuse(f"a number in it is {_listed([own, *others])}")

    def subscript(self, own: Index, others: Sequence[Index]) -> Index:
        """Return a subscript of all sizes that no data says. Raises VaryingSizeError."""
        if isinstance(own, Affine):
            return self.form(own, [it for it in others if isinstance(it, Affine)])
        if any(other != own for other in others):
            raise self.refuse("its subscripts depend on it")
        return own

    def form(self, own: Affine, others: Sequence[Affine]) -> Affine:
        """Return an affine form of all sizes: the same, or some places from a size."""
        row = [own.const, *(other.const for other in others)]
        if any(other.terms != own.terms for other in others):
            raise self.refuse(f"{own} is {others[-1]}")
        if len({*row}) == 1:
            return own
        equal = self.named(row)
        for name in filter(None, (equal, *self.known)):
            sizes = self.known[name]
            at = next(at for at, size in enumerate(sizes) if size != sizes[0])
            factor, rest = divmod(row[0] - row[at], sizes[0] - sizes[at])
            moved = [place - factor * size for place, size in zip(row, sizes, strict=True)]
            if not rest and len({*moved}) == 1:
                return Affine((*own.terms, (self.variables[name], factor)), moved[0])
        raise self.refuse(f"{own} is {others[-1]}")


def _head(expr: Expr) -> tuple[object, ...]:
    """Return what expressions of all sizes have in common, beside numbers and their parts."""
    match expr:
        case Load(tensor, index):
            kinds = tuple([(type(at), getattr(at, "extent", 0)) for at in index])
            return (Load, tensor, kinds)
        case Apply(function, arguments):
            return (Apply, function, len(arguments))
        case Where(guards):
            return (Where, len(guards))
        case Reduce(function, over, _, guards):
            return (Reduce, function, tuple([name for name, _ in over]), len(guards))
    return (type(expr),)


def _listed(values: Sequence[float]) -> str:
    return " or ".join(dict.fromkeys(f"{value:.9g}" for value in values))


def join_changes(before: Stage, one: Stage, two: Stage) -> Stage | None:
    """Return a stage with the changes of two others; None where these contradict each other."""
    if before == one or one == two:
        return two
    if before == two:
        return one
    if isinstance(one, LoopStage) and isinstance(two, LoopStage) and isinstance(before, LoopStage):
        expr = _join(before.expr, one.expr, two.expr)
        return None if expr is None else replace(before, expr=expr)
    return None


def _join(before: Expr, one: Expr, two: Expr) -> Expr | None:
    """Return an expression with two changes; None where these contradict each other."""
    if before == one or one == two:
        return two
    if before == two:
        return one
    match before, one, two:
        case Number(), Apply(), Apply():
            return _in_place_of_number(before, one, two)
        case Apply(function, arguments), Apply(), Apply() if (
            one.function == two.function == function
        ):
            if parts := _join_all(arguments, one.arguments, two.arguments):
                return Apply(function, parts)
        case Where(), Where(), Where():
            guards = _join_guards(before.guards, one.guards, two.guards)
            parts = _join_all(*((it.body, it.otherwise) for it in (before, one, two)))
            if guards and parts:
                return Where(guards, *parts)
        case Reduce(), Reduce(), Reduce() if before.over == one.over == two.over:
            guards = _join_guards(before.guards, one.guards, two.guards)
            parts = _join_all([before.body], [one.body], [two.body])
            if guards is not None and parts:
                ends = tuple(dict.fromkeys((*one.ends, *two.ends)))
                return replace(before, body=parts[0], guards=guards, ends=ends)
        case Position(at), Position(), Position():
            form = _join_forms(at, one.at, two.at)
            return Position(form) if isinstance(form, Affine) else None
        case Load(_, index), Load(), Load():
            forms = [_join_forms(*its) for its in zip(index, one.index, two.index, strict=True)]
            kept = tuple([form for form in forms if form is not None])
            return replace(before, index=kept) if len(kept) == len(index) else None
    return None


def _join_all(*rows: Sequence[Expr]) -> tuple[Expr, ...] | None:
    """Return expressions with the changes of two others, one by one."""
    joined = [_join(*parts) for parts in zip(*rows, strict=True)]
    kept = tuple([part for part in joined if part is not None])
    return kept if len(kept) == len(joined) else None


def _in_place_of_number(before: Number, one: Expr, two: Expr) -> Expr | None:
    """Return a number with sizes as factors and divisors of two others."""
    match one:
        case Number(value):
            return _scale(two, value / before.value)
        case Apply("mul" | "div", (inner, Apply() as position)):
            rest = _in_place_of_number(before, inner, two)
            return None if rest is None else Apply(one.function, (rest, position))
    return None


def _scale(expr: Expr, factor: float) -> Expr | None:
    """Return a number, with sizes as its factors and divisors, times another one."""
    match expr:
        case Number(value):
            return Number(value * factor)
        case Apply("mul" | "div", (inner, Apply() as position)):
            rest = _scale(inner, factor)
            return None if rest is None else Apply(expr.function, (rest, position))
    return None


def _join_forms(before: Index, one: Index, two: Index) -> Index | None:
    """Return a subscript that two sizes move by one place each; None for what they do otherwise.

    Where one moves it further, that may be as many places as the other one is.
    """
    if before == one or one == two:
        return two
    if before == two:
        return one
    if not (isinstance(before, Affine) and isinstance(one, Affine) and isinstance(two, Affine)):
        return None
    more = [term for form in (one, two) for term in form.terms if term not in before.terms]
    if len(more) != 2 or any(abs(coef) != 1 for _, coef in more):
        return None
    return Affine((*before.terms, *more), one.const + two.const - before.const)


def _join_guards(
    before: Sequence[Guard], one: Sequence[Guard], two: Sequence[Guard]
) -> tuple[Guard, ...] | None:
    """Return all guards, if two others have those of before and more."""
    kept = all(guard in one and guard in two for guard in before)
    return tuple(dict.fromkeys((*one, *two))) if kept else None
