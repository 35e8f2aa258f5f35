"""grad: from a comprehension to the one that computes its gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from polysci.border.guard import guard
from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.notation.elaborate import Elaborated, elaborate
from polysci.frontends.notation.element_types import is_real, tensor_types
from polysci.frontends.notation.parser import error_at, parse
from polysci.frontends.notation.ranges import Inference, StatementRanges
from polysci.frontends.notation.sizes import infer_shapes
from polysci.frontends.notation.syntax import (
    Assignment,
    AxisExtent,
    Comprehension,
    Conversion,
    Declaration,
    Element,
    IndexRange,
    Literal,
    Operation,
    Term,
    Variable,
    rewrite_statement,
    rewrite_terms,
    walk_terms,
)
from polysci.notation.derivatives import apply, choice_of, pull_back
from polysci.notation.versions import (
    choose_names,
    copy_version,
    gradient,
    merge_versions,
    number_versions,
    rename,
)
from polysci.polyhedral.affine import Affine


@guard
def grad(text: str, *inputs: str, sizes: Mapping[str, int] | None = None, name: str = "") -> str:
    """The text of a comprehension that computes the gradients of ``inputs``, by default all real.

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
    """The comprehension whose text ``grad`` gives."""
    comprehension, types = whole.comprehension, tensor_types(whole.comprehension)
    real = [tensor.name for tensor in comprehension.inputs if is_real(tensor.dtype)]
    for wanted in inputs:
        if wanted not in real:
            raise SpecError(f"{comprehension.name}: {wanted} is no real input: {', '.join(real)}")
    return _Backward(comprehension, infer_shapes(whole, sizes), types, inputs or tuple(real)).run()


Choices = tuple[tuple[Term, bool], ...]  # conditions, and whether they hold
Slope = tuple[Element, Term, Choices]


@dataclass(slots=True)
class _Backward:
    """The statements backwards; ``made``: tensors whose gradients have a value so far.

    ``reads``: what the tensors hold that a statement reads, as ``versions`` calls it.
    """

    forward: Comprehension
    inference: Inference
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
        """Raises SpecError for an input that is called as a gradient is."""
        inputs = [tensor.name for tensor in self.forward.inputs]
        for name in (*outputs, *self.wanted):
            if f"d_{name}" in inputs:
                what = f"d_{name} is an input: the gradient of {name} would have its name"
                raise error_at(self.forward.text, self.forward.at, what)

    def compute_values(self, versions: Sequence[tuple[dict[str, str], str]]) -> list[Assignment]:
        """The statements of the comprehension, with a tensor for each version that is read."""
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
        """Forward and backward statements as one, with names that the notation has."""
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
        """A size, or a scalar that has a value, as a number."""
        match term:
            case Element(name, ()) if name in self.sizes:
                value = self.sizes[name]
                return Literal(float(value) if is_real(self.types[name]) else value)
            case Variable(name) if name in self.sizes:
                return Literal(self.sizes[name])
            case AxisExtent(tensor, axis):
                return Literal(self.inference.shape(tensor)[axis])
        return term

    def dependent(self) -> set[str]:
        """The tensors on which the wanted gradients depend."""
        known = {*self.wanted}
        for ranges in self.inference.statements:
            reads = {part.tensor for part in walk_terms(ranges.statement.value)
                     if isinstance(part, Element)}  # fmt: skip
            if reads & known:
                known.add(ranges.statement.tensor)
        return known

    def refuse_changes(self, ranges: StatementRanges) -> None:
        """Raises UnsupportedError for a statement that replaces values that were there."""
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
        own = Element(statement.tensor, tuple(map(Variable, statement.index)))
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
        return apply("equal", place, _term(Affine(tuple(steps), const)))

    def other_factors(self, ranges: StatementRanges, product: Element) -> Term:
        """The product of all factors of an element but that of these iterators."""
        value = ranges.statement.value
        is_zero = apply("equal", value, 0.0)
        zeros = self.combine(ranges, "zeros of", "+=", is_zero)
        others = self.combine(ranges, "others of", "*=", apply("select", is_zero, 1.0, value))
        is_alone = apply("equal", zeros, 1)
        at_zero = apply("select", is_alone, others, 0.0)
        return apply("select", is_zero, at_zero, apply("div", product, value))

    def combine(self, ranges: StatementRanges, name: str, operator: str, value: Term) -> Element:
        """An element of one more tensor, which combines a value over the same iterators."""
        target, index = ranges.statement.tensor, ranges.statement.index
        made = Assignment(f"{name} {target}", index, operator, True, value, _ranges(ranges))
        self.statements.append(rename(rewrite_statement(made, self.fix), self.reads))
        return Element(made.tensor, tuple(map(Variable, index)))

    def slopes(self, term: Term, seed: Term, chosen: Choices) -> Iterator[Slope]:
        """The elements that a term reads as real numbers, and the gradient of each."""
        match term:
            case Element(tensor, _) if is_real(self.types[tensor]):
                yield term, seed, chosen
            case Conversion(dtype, value) if is_real(dtype):
                yield from self.slopes(value, seed, chosen)
            case Operation() if choice := choice_of(term):
                condition, body, otherwise = choice
                yield from self.slopes(body, seed, (*chosen, (condition, True)))
                yield from self.slopes(otherwise, seed, (*chosen, (condition, False)))
            case Operation():
                for part, gradient_of_part in pull_back(term, seed):
                    if any(isinstance(inner, Element) for inner in walk_terms(part)):
                        yield from self.slopes(part, gradient_of_part, chosen)

    def accumulate(
        self, tensor: str, index: tuple[str, ...], value: Term, ranges: tuple[IndexRange, ...]
    ) -> None:
        """``d_tensor(index) += value``."""
        extents = self.inference.shape(tensor)
        bounds = tuple(
            IndexRange(name, Literal(0), Literal(size))
            for name, size in zip(index, extents, strict=True)
        )
        statement = Assignment(
            gradient(tensor), index, "+=", tensor not in self.made, value, (*bounds, *ranges)
        )
        self.statements.append(rename(rewrite_statement(statement, self.fix), self.reads))
        self.made.add(tensor)


@dataclass(slots=True)
class _Pull:
    """``d_A(x) += slope`` at all places where a statement reads ``A(subscripts) = A(x)``."""

    work: _Backward
    ranges: StatementRanges
    element: Element
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
        rest = tuple(
            bound for bound in _ranges(self.ranges)
            if bound.name not in self.places and bound.name not in index
        )  # fmt: skip
        self.work.accumulate(self.element.tensor, tuple(index), value, rest)

    def put(self, term: Term) -> Term:
        return rewrite_terms(
            term,
            lambda part: self.places.get(part.name, part) if isinstance(part, Variable) else part,
        )

    def reduce(self, form: Affine) -> Affine:
        """A linear form without the iterators that have places."""
        steps, const = Counter(dict(form.terms)), form.const
        while replaced := [name for name in steps if name in self.forms]:
            step, place = steps.pop(replaced[0]), self.forms[replaced[0]]
            const += step * place.const
            for name, coef in place.terms:
                steps[name] += step * coef
        return Affine(tuple((name, step) for name, step in steps.items() if step), const)

    def solve(self, subscript: Term, name: str, size: int, index: Sequence[str]) -> str:
        """The iterator of an axis, and an iterator of the statement by it where that is one."""
        form = self.ranges.affine(subscript)
        if form is not None:
            form = self.reduce(form)
        free = [] if form is None else [
            (iterator, coef) for iterator, coef in form.terms
            if abs(coef) == 1 and iterator in self.ranges.iterators and iterator not in index
        ]  # fmt: skip
        if form is None or not free:
            same = apply("equal", Variable(name), subscript)
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
        self.places[iterator] = _term(self.forms[iterator])
        self.inside = _both(self.inside, apply("greater_equal", self.places[iterator], first))
        self.inside = _both(self.inside, apply("less", self.places[iterator], end))
        return name


def _both(first: Term | None, second: Term) -> Term:
    return second if first is None else apply("and", first, second)


def _term(form: Affine) -> Term:
    """A linear form as a term."""
    term: Term = Literal(form.const)
    for name, coef in form.terms:
        term = apply("add", term, apply("mul", coef, Variable(name)))
    return term


def _ranges(ranges: StatementRanges) -> tuple[IndexRange, ...]:
    """The ranges of all iterators as numbers."""
    return tuple(IndexRange(name, *map(Literal, ranges.bounds(name))) for name in ranges.iterators)
