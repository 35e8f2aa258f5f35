"""grad: from a comprehension to the one that computes its gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from polysci.border.guard import guard
from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.notation.elaborate import Elaborated, elaborate, is_real, tensor_types
from polysci.frontends.notation.parser import error_at, parse
from polysci.frontends.notation.ranges import ComprehensionRanges, StatementRanges, infer_shapes
from polysci.frontends.notation.syntax import (
    Assignment,
    AxisExtent,
    Comprehension,
    Conversion,
    Declaration,
    IndexRange,
    Literal,
    Operation,
    Symbol,
    TensorElement,
    Term,
    rewrite_statement,
    rewrite_terms,
    walk_terms,
)
from polysci.numerics import formulas
from polysci.numerics.affine import Affine
from polysci.numerics.scalar_functions import FUNCTIONS, is_predicate


def gradient(name: str) -> str:
    return f"d {name}"


def number_versions(
    inputs: Iterable[str], statements: Iterable[Assignment]
) -> list[tuple[dict[str, str], str]]:
    """Return, for each statement, the versions of tensors before it and of its target behind it."""
    current = {name: f"{name}@0" for name in inputs}
    numbered = []
    for statement in statements:
        before, tensor = dict(current), statement.tensor
        count = _number(current[tensor]) + 1 if tensor in current else 0
        current[tensor] = f"{tensor}@{count}"
        numbered.append((before, current[tensor]))
    return numbered


def copy_version(statement: Assignment, name: str, shape: Sequence[int]) -> Assignment:
    """Return what the target of a statement is before it, under another name."""
    value = TensorElement(statement.tensor, tuple(map(Symbol, statement.index)))
    bounds = _whole_axes(statement.index, shape)
    return Assignment(name, statement.index, "=", True, value, bounds)


def _whole_axes(index: Sequence[str], shape: Sequence[int]) -> tuple[IndexRange, ...]:
    """Return the ranges of iterators over all elements of a tensor."""
    pairs = zip(index, shape, strict=True)
    return tuple(IndexRange(axis, Literal(0), Literal(size)) for axis, size in pairs)


def rename(statement: Assignment, names: Mapping[str, str]) -> Assignment:
    """Return a statement with other names for tensors."""

    def change(term: Term) -> Term:
        if isinstance(term, TensorElement):
            return replace(term, tensor=names.get(term.tensor, term.tensor))
        return term

    changed = rewrite_statement(statement, change)
    return replace(changed, tensor=names.get(statement.tensor, statement.tensor))


def merge_versions(targets: Iterable[str], backward: Iterable[Assignment]) -> dict[str, str]:
    """Map versions that need no tensor of their own to the first one of their tensor.

    These are the versions of tensors of which ``backward`` reads none but the last: the statements
    before read the newest as well. ``targets`` are in the order of the statements.
    """
    last = {_tensor(name): name for name in targets}
    read = {name for statement in backward for name in _tensors_in(statement.value) if "@" in name}
    several = {_tensor(name) for name in read if name != last.get(_tensor(name), name)}
    return {
        f"{tensor}@{number}": f"{tensor}@0"
        for tensor, newest in last.items() if tensor not in several
        for number in range(1, _number(newest) + 1)
    }  # fmt: skip


def choose_names(
    inputs: Collection[str], gradients: Collection[str], statements: Iterable[Assignment]
) -> dict[str, str]:
    """Choose names of all tensors: inputs keep theirs, ``gradients`` begin with ``d_``."""
    names = {f"{name}@0": name for name in inputs}
    names |= {gradient(name): f"d_{name}" for name in gradients}
    taken = {*names.values()}
    tensors = list[str]()
    for statement in statements:
        tensors += [*_tensors_in(statement.value), statement.tensor]
        taken |= {*statement.index, *(bound.name for bound in statement.ranges)}
    for name in dict.fromkeys(tensors):
        if name not in names:
            plain = _tensor(name) if "@" in name else name.replace(" ", "_")
            number, names[name] = 0, plain
            while names[name] in taken:
                number += 1
                names[name] = f"{plain}_{number}"
            taken.add(names[name])
    return names


def _tensors_in(term: Term) -> list[str]:
    """List the tensors whose elements a term reads."""
    return [part.tensor for part in walk_terms(term) if isinstance(part, TensorElement)]


def _tensor(name: str) -> str:
    return name.partition("@")[0]


def _number(name: str) -> int:
    return int(name.partition("@")[2])


def apply(function: str, *arguments: Term | float) -> Operation:
    """Return a function of terms and numbers."""
    return Operation(function, tuple(map(_as_term, arguments)))


def pull_back(term: Operation, seed: Term) -> Iterator[tuple[Term, Term]]:
    """Yield arguments of a function with their gradients, where ``seed`` is that of its value.

    Predicates have none, and a function with a choice has them by ``choice_of``.
    """
    if is_predicate(term.function):
        return
    for argument, formula in zip(term.arguments, formulas.gradients(term.function), strict=True):
        if formula is not None and not isinstance(argument, Literal):
            values = {**_operands(term), "dy": seed, "y": term}
            yield argument, _as_term(formulas.evaluate(formula, values, _apply_all))


def choice_of(term: Operation) -> tuple[Term, Term, Term] | None:
    """Return the condition and the two sides of a function that gives one of its arguments."""
    choice = FUNCTIONS[term.function].choice
    if choice is None:
        return None
    condition, body, otherwise = (
        _as_term(formulas.evaluate(formulas.parse(text), _operands(term), _apply_all))
        for text in choice
    )
    return condition, body, otherwise


def _operands(term: Operation) -> dict[str, Any]:
    """Return the arguments by their names in formulas, literals as numbers."""
    values = [part.value if isinstance(part, Literal) else part for part in term.arguments]
    return dict(zip(FUNCTIONS[term.function].names, values, strict=True))


def _apply_all(function: str, parts: Sequence[Any]) -> Term:
    return apply(function, *parts)


def _as_term(part: Any) -> Term:
    if formulas.is_number(part):
        return Literal(float(part) if isinstance(part, bool) else part)
    term: Term = part
    return term


@guard
def grad(text: str, *inputs: str, sizes: Mapping[str, int] | None = None, name: str = "") -> str:
    """Return the text of a comprehension of the gradients of ``inputs``, by default all real ones.

    It takes the inputs of the comprehension ``name`` of ``text``, by default its last, and for each
    real output O its gradient ``d_O``; its outputs are ``d_A`` for each input A that is asked for.
    ``sizes`` has a value for every shape variable. Of equal extremes, of ``max=`` and ``min=`` as
    of ``max`` and ``min``, the first has the whole gradient. A subscript out of data makes every
    element of the axis look for its places. Raises SpecError for names that are no real inputs,
    UnsupportedError for tensors that have other values later, but by ``+=``.
    """
    return str(gradients_of(elaborate(parse(text), name), inputs, sizes or {}))


def gradients_of(
    whole: Elaborated, inputs: Sequence[str], sizes: Mapping[str, int]
) -> Comprehension:
    """Return the comprehension whose text ``grad`` gives."""
    comprehension, types = whole.comprehension, tensor_types(whole.comprehension)
    real = [tensor.name for tensor in comprehension.inputs if is_real(tensor.dtype)]
    for wanted in inputs:
        if wanted not in real:
            raise SpecError(f"{comprehension.name}: {wanted} is no real input: {', '.join(real)}")
    return _Backward(comprehension, infer_shapes(whole, sizes), types, inputs or tuple(real)).run()


Choices = tuple[tuple[Term, bool], ...]  # conditions, and whether they hold
Slope = tuple[TensorElement, Term, Choices]


@dataclass(slots=True)
class _Backward:
    """The backward statements; ``made``: tensors whose gradients have a value so far.

    ``reads``: the versions of the tensors that a statement reads, by ``number_versions``.
    """

    forward: Comprehension
    inference: ComprehensionRanges
    types: Mapping[str, str]
    wanted: Sequence[str]
    made: set[str] = field(default_factory=set)
    statements: list[Assignment] = field(default_factory=list)
    reads: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> Comprehension:
        forward, shape = self.forward, self.inference.shape
        outputs = [name for name in dict.fromkeys(forward.outputs) if is_real(self.types[name])]
        self.check_names(outputs)
        self.made |= {*outputs}
        known, steps = self.dependent(), self.inference.statements
        inputs = [tensor.name for tensor in forward.inputs]
        versions = number_versions(inputs, (ranges.statement for ranges in steps))
        for ranges, (before, behind) in zip(reversed(steps), reversed(versions), strict=True):
            self.refuse_changes(ranges)
            target = ranges.statement.tensor
            self.reads = {**before, target: behind} if ranges.is_first else before
            if target in self.made & known:
                self.pull_back(ranges, known)
        for name in self.wanted:
            if name not in self.made:
                index = tuple(f"x{at}" for at in range(len(shape(name))))
                self.accumulate(name, index, Literal(0.0), ())
        return self.comprehension(outputs, self.compute_values(versions))

    def check_names(self, outputs: Sequence[str]) -> None:
        """Raise SpecError for an input that is called as a gradient is."""
        inputs = [tensor.name for tensor in self.forward.inputs]
        for name in (*outputs, *self.wanted):
            if f"d_{name}" in inputs:
                what = f"d_{name} is an input: the gradient of {name} would have its name"
                raise error_at(self.forward.text, self.forward.at, what)

    def compute_values(self, versions: Sequence[tuple[dict[str, str], str]]) -> list[Assignment]:
        """Return the forward statements, with a tensor for each version that is read."""
        statements = list[Assignment]()
        merged = merge_versions((behind for _, behind in versions), self.statements)
        for ranges, (before, behind) in zip(self.inference.statements, versions, strict=True):
            step = replace(ranges.statement, ranges=_ranges(ranges), exists=())
            target = step.tensor
            reads = {**before, target: behind} if ranges.is_first else before
            step = rename(rewrite_statement(step, self.fix), reads)
            if not ranges.is_first and behind not in merged:
                shape = self.inference.shape(target)
                statements.append(copy_version(step, behind, shape))
                step = replace(step, tensor=behind)
            statements.append(rename(step, merged))
        self.statements = [rename(statement, merged) for statement in self.statements]
        return statements

    def comprehension(self, outputs: Sequence[str], forward: Sequence[Assignment]) -> Comprehension:
        """Join forward and backward statements, with names that the notation has."""
        sizes, shape = self.sizes, self.inference.shape
        inputs = [replace(tensor, extents=shape(tensor.name))
                  for tensor in self.forward.inputs if tensor.name not in sizes]  # fmt: skip
        seeds = [
            Declaration(f"d_{name}", "float64" if self.types[name] == "float64" else "float32",
                        shape(name))
            for name in outputs
        ]  # fmt: skip
        statements = [*forward, *self.statements]
        kept = [tensor.name for tensor in self.forward.inputs]
        names = choose_names(kept, {*outputs, *self.wanted}, statements)
        return Comprehension(
            f"{self.forward.name}_gradients", (*inputs, *seeds),
            tuple(f"d_{name}" for name in self.wanted),
            tuple(rename(statement, names) for statement in statements),
        )  # fmt: skip

    @property
    def sizes(self) -> Mapping[str, int]:
        return self.inference.statements[0].work.sizes if self.inference.statements else {}

    def fix(self, term: Term) -> Term:
        """Replace a size, or a scalar that has a value, by the number."""
        match term:
            case TensorElement(name, ()) if name in self.sizes:
                value = self.sizes[name]
                return Literal(float(value) if is_real(self.types[name]) else value)
            case Symbol(name) if name in self.sizes:
                return Literal(self.sizes[name])
            case AxisExtent(tensor, axis):
                return Literal(self.inference.shape(tensor)[axis])
        return term

    def dependent(self) -> set[str]:
        """Return the tensors that depend on what gradients are wanted of."""
        known = {*self.wanted}
        for ranges in self.inference.statements:
            if known.intersection(_tensors_in(ranges.statement.value)):
                known.add(ranges.statement.tensor)
        return known

    def refuse_changes(self, ranges: StatementRanges) -> None:
        """Raise UnsupportedError for a statement that replaces values that were there."""
        statement = ranges.statement
        if ranges.is_first or (statement.operator == "+=" and not statement.initialise):
            return
        raise self.refusal(statement.at, f"{statement.tensor} has values before")

    def refusal(self, at: int, why: str) -> Exception:
        what = f"no gradient: {why}"
        return error_at(self.forward.text, at, what, kind=UnsupportedError)

    def pull_back(self, ranges: StatementRanges, known: set[str]) -> None:
        """Add a statement's part to the gradients of the tensors that it reads."""
        statement = ranges.statement
        own = TensorElement(statement.tensor, tuple(map(Symbol, statement.index)))
        seed: Term = replace(own, tensor=gradient(statement.tensor))
        choices: Choices = ()
        match statement.operator:
            case "max=" | "min=" if ranges.reductions:
                choices = ((self.is_first_extreme(ranges), True),)
            case "*=":
                seed = apply("mul", seed, self.other_factors(ranges, own))
            case "argmin=" | "argmax=":
                return
        for element, slope, chosen in self.slopes(statement.value, seed, choices):
            if element.tensor not in known:
                continue
            if element.tensor == statement.tensor:
                raise self.refusal(element.at, f"{statement.tensor} is read where it changes")
            _Pull(self, ranges, element, slope).add(chosen)

    def is_first_extreme(self, ranges: StatementRanges) -> Term:
        """Test whether these iterators reach the first of the extremes of their element."""
        steps, const, step = list[tuple[str, int]](), 0, 1
        for name in reversed(ranges.reductions):  # as places of argmax= are counted
            first, end = ranges.bounds(name)
            steps.append((name, step))
            const, step = const - step * first, step * (end - first)
        statement = ranges.statement
        place = self.combine(ranges, "place of", f"arg{statement.operator}", statement.value)
        return apply("equal", place, _linear_term(Affine(tuple(steps), const)))

    def other_factors(self, ranges: StatementRanges, product: TensorElement) -> Term:
        """Return the product of all factors of an element but that of these iterators."""
        value = ranges.statement.value
        is_zero = apply("equal", value, 0.0)
        zeros = self.combine(ranges, "zeros of", "+=", is_zero)
        others = self.combine(ranges, "others of", "*=", apply("select", is_zero, 1.0, value))
        is_alone = apply("equal", zeros, 1)
        at_zero = apply("select", is_alone, others, 0.0)
        return apply("select", is_zero, at_zero, apply("div", product, value))

    def combine(
        self, ranges: StatementRanges, name: str, operator: str, value: Term
    ) -> TensorElement:
        """Combine a value over the same iterators; return an element of the new tensor."""
        target, index = ranges.statement.tensor, ranges.statement.index
        self.append(Assignment(f"{name} {target}", index, operator, True, value, _ranges(ranges)))
        return TensorElement(f"{name} {target}", tuple(map(Symbol, index)))

    def append(self, statement: Assignment) -> None:
        """Add a backward statement, of numbers for sizes and of versions of tensors."""
        self.statements.append(rename(rewrite_statement(statement, self.fix), self.reads))

    def slopes(self, term: Term, seed: Term, chosen: Choices) -> Iterator[Slope]:
        """Yield the elements that a term reads as real numbers, and the gradient of each."""
        match term:
            case TensorElement(tensor, _) if is_real(self.types[tensor]):
                yield term, seed, chosen
            case Conversion(dtype, value) if is_real(dtype):
                yield from self.slopes(value, seed, chosen)
            case Operation() if choice := choice_of(term):
                condition, body, otherwise = choice
                yield from self.slopes(body, seed, (*chosen, (condition, True)))
                yield from self.slopes(otherwise, seed, (*chosen, (condition, False)))
            case Operation():
                for part, gradient_of_part in pull_back(term, seed):
                    if _tensors_in(part):
                        yield from self.slopes(part, gradient_of_part, chosen)

    def accumulate(
        self, tensor: str, index: tuple[str, ...], value: Term, ranges: tuple[IndexRange, ...]
    ) -> None:
        """Add ``d_tensor(index) += value``."""
        bounds = (*_whole_axes(index, self.inference.shape(tensor)), *ranges)
        first = tensor not in self.made
        self.append(Assignment(gradient(tensor), index, "+=", first, value, bounds))
        self.made.add(tensor)


@dataclass(slots=True)
class _Pull:
    """``d_A(x) += slope`` at all places where a statement reads ``A(subscripts) = A(x)``."""

    work: _Backward
    ranges: StatementRanges
    element: TensorElement
    slope: Term
    places: dict[str, Term] = field(default_factory=dict)  # iterator -> what it is
    forms: dict[str, Affine] = field(default_factory=dict)  # the same as linear forms
    inside: Term | None = None  # the linear conditions
    matches: Term | None = None  # that subscripts out of data are the place

    def add(self, chosen: Choices) -> None:
        index: list[str] = []
        for axis, subscript in enumerate(self.element.index):
            size = self.work.inference.shape(self.element.tensor)[axis]
            index.append(self.solve(subscript, f"x{axis}_{self.element.tensor}", size, index))
        # What a place is may hold iterators that later axes replace.
        for _ in index:
            self.places = {name: self.put(term) for name, term in self.places.items()}
        value: Term = self.put(self.slope)
        for condition, holds in chosen:
            if holds and self.ranges.condition(condition) is not None:
                self.inside = _both(self.inside, condition)
            else:
                ends = (value, Literal(0.0)) if holds else (Literal(0.0), value)
                value = apply("select", self.put(condition), *ends)
        if self.matches is not None:
            value = apply("select", self.put(self.matches), value, 0.0)
        if self.inside is not None:
            value = apply("select", self.put(self.inside), value, 0.0)
        gone = {*self.places, *index}
        rest = tuple(bound for bound in _ranges(self.ranges) if bound.name not in gone)
        self.work.accumulate(self.element.tensor, tuple(index), value, rest)

    def put(self, term: Term) -> Term:
        return rewrite_terms(
            term,
            lambda part: self.places.get(part.name, part) if isinstance(part, Symbol) else part,
        )

    def reduce(self, form: Affine) -> Affine:
        """Replace the iterators that have places in a linear form."""
        steps, const = Counter(dict(form.terms)), form.const
        while replaced := [name for name in steps if name in self.forms]:
            step, place = steps.pop(replaced[0]), self.forms[replaced[0]]
            const += step * place.const
            for name, coef in place.terms:
                steps[name] += step * coef
        return Affine(tuple((name, step) for name, step in steps.items() if step), const)

    def solve(self, subscript: Term, name: str, size: int, index: Sequence[str]) -> str:
        """Return the iterator of an axis; express one of the statement's by it where possible."""
        form = self.ranges.affine(subscript)
        if form is not None:
            form = self.reduce(form)
        free = [] if form is None else [
            (iterator, coef) for iterator, coef in form.terms
            if abs(coef) == 1 and iterator in self.ranges.iterators and iterator not in index
        ]  # fmt: skip
        if form is None or not free:
            same = apply("equal", Symbol(name), subscript)
            if form is None:
                self.matches = _both(self.matches, same)
            else:
                self.inside = _both(self.inside, same)
            return name
        iterator, coef = free[0]
        first, end = self.ranges.bounds(iterator)
        if form == Affine(((iterator, 1),)) and (first, end) == (0, size):
            return iterator
        others = Affine(tuple(term for term in form.terms if term[0] != iterator), form.const)
        self.forms[iterator] = Affine(
            ((name, coef), *((other, -coef * step) for other, step in others.terms)),
            -coef * others.const,
        )
        self.places[iterator] = _linear_term(self.forms[iterator])
        self.inside = _both(self.inside, apply("greater_equal", self.places[iterator], first))
        self.inside = _both(self.inside, apply("less", self.places[iterator], end))
        return name


def _both(first: Term | None, second: Term) -> Term:
    return second if first is None else apply("and", first, second)


def _linear_term(form: Affine) -> Term:
    """Return a linear form as a term."""
    term: Term = Literal(form.const)
    for name, coef in form.terms:
        term = apply("add", term, apply("mul", coef, Symbol(name)))
    return term


def _ranges(ranges: StatementRanges) -> tuple[IndexRange, ...]:
    """Return the ranges of all iterators as numbers."""
    return tuple(IndexRange(name, *map(Literal, ranges.bounds(name))) for name in ranges.iterators)
