"""grad: from a comprehension to the one that computes its gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import pi, prod, sqrt
from types import MappingProxyType
from typing import Final

from polysci.border.guard import guard
from polysci.errors import SpecError, UnsupportedError
from polysci.network.frontends.notation.elaborate import Elaborated, elaborate
from polysci.network.frontends.notation.element_types import is_real, tensor_types
from polysci.network.frontends.notation.parser import error_at, parse
from polysci.network.frontends.notation.ranges import Inference, StatementRanges
from polysci.network.frontends.notation.sizes import infer_shapes
from polysci.network.frontends.notation.syntax import (
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
    names_in,
    rewrite_statement,
    rewrite_terms,
    walk_terms,
)
from polysci.polyhedral.affine import Affine


def _of(function: str, *arguments: Term | float) -> Operation:
    return Operation(function, tuple(
        Literal(part) if isinstance(part, int | float) else part for part in arguments
    ))  # fmt: skip


def _normal(x: Term) -> Term:
    """``exp(-x * x / 2) / sqrt(2 * pi)``."""
    return _of("mul", _of("exp", _of("mul", _of("square", x), -0.5)), 1 / sqrt(2 * pi))


def _sigmoid_slope(x: Term) -> Term:
    return _of("mul", _of("sigmoid", x), _of("sub", 1.0, _of("sigmoid", x)))


def _step(comparison: str, a: Term, b: Term) -> Term:
    return _of("select", _of(comparison, a, b), 1.0, 0.0)


# Function of one real number -> its derivative.
_SLOPES: Final[Mapping[str, Callable[[Term], Term]]] = MappingProxyType(
    {
        "neg": lambda x: Literal(-1.0),
        "exp": lambda x: _of("exp", x),
        "log": lambda x: _of("reciprocal", x),
        "sqrt": lambda x: _of("div", 0.5, _of("sqrt", x)),
        "square": lambda x: _of("mul", x, 2.0),
        "reciprocal": lambda x: _of("neg", _of("square", _of("reciprocal", x))),
        "sin": lambda x: _of("cos", x),
        "cos": lambda x: _of("neg", _of("sin", x)),
        "tan": lambda x: _of("add", 1.0, _of("square", _of("tan", x))),
        "sinh": lambda x: _of("cosh", x),
        "cosh": lambda x: _of("sinh", x),
        "tanh": lambda x: _of("sub", 1.0, _of("square", _of("tanh", x))),
        "atan": lambda x: _of("reciprocal", _of("add", 1.0, _of("square", x))),
        "erf": lambda x: _of("mul", _of("exp", _of("neg", _of("square", x))), 2 / sqrt(pi)),
        "abs": lambda x: _of("sign", x),
        "relu": lambda x: _of("select", _of("greater", x, 0.0), 1.0, 0.0),
        "sigmoid": _sigmoid_slope,
        "softplus": lambda x: _of("sigmoid", x),
        "silu": lambda x: _of("add", _of("sigmoid", x), _of("mul", x, _sigmoid_slope(x))),
        "gelu": lambda x: _of(
            "add", _of("mul", x, _normal(x)),
            _of("add", 0.5, _of("mul", _of("erf", _of("mul", x, sqrt(0.5))), 0.5)),
        ),
        **{name: lambda x: Literal(0.0) for name in ("floor", "ceil", "rint", "sign")},
    }
)  # fmt: skip
# Function of two real numbers -> its derivatives by each.
_PAIRS: Final[Mapping[str, Callable[[Term, Term], tuple[Term, Term]]]] = MappingProxyType(
    {
        "add": lambda a, b: (Literal(1.0), Literal(1.0)),
        "sub": lambda a, b: (Literal(1.0), Literal(-1.0)),
        "mul": lambda a, b: (b, a),
        "div": lambda a, b: (
            _of("reciprocal", b), _of("neg", _of("div", a, _of("square", b)))
        ),
        "pow": lambda a, b: (
            _of("mul", b, _of("pow", a, _of("sub", b, 1.0))),
            _of("mul", _of("pow", a, b), _of("log", a)),
        ),
        "min": lambda a, b: (_step("less_equal", a, b), _step("greater", a, b)),
        "max": lambda a, b: (_step("greater_equal", a, b), _step("less", a, b)),
    }
)  # fmt: skip


@guard
def grad(text: str, *inputs: str, sizes: Mapping[str, int] | None = None, name: str = "") -> str:
    """The text of a comprehension that computes the gradients of ``inputs``, by default all real.

    It takes the inputs of the comprehension ``name`` of ``text``, by default its last, and for each
    real output O its gradient ``d_O``; its outputs are ``d_A`` for each input A that is asked for.
    ``sizes`` has a value for every shape variable. Of equal extremes of ``max=`` and ``min=`` each
    has the whole gradient; factors of ``*=`` must not be 0. A subscript out of data makes every
    element of the axis look for its places. Raises SpecError for names that are no real inputs,
    UnsupportedError for functions without a rule and tensors that change after they are read.
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
    """The statements backwards; ``made``: tensors whose gradients have a value so far."""

    forward: Comprehension
    inference: Inference
    types: Mapping[str, str]
    wanted: Sequence[str]
    made: set[str] = field(default_factory=set)
    statements: list[Assignment] = field(default_factory=list)

    def run(self) -> Comprehension:
        forward, sizes = self.forward, self.inference
        outputs = [name for name in dict.fromkeys(forward.outputs) if is_real(self.types[name])]
        given = [
            Declaration(_gradient(name), "float32" if self.types[name] != "float64" else "float64",
                        sizes.shape(name))
            for name in outputs
        ]  # fmt: skip
        self.made |= {*outputs}
        known = self.dependent()
        for ranges in reversed(sizes.statements):
            self.refuse_changes(ranges)
            if ranges.statement.tensor in self.made & known:
                self.pull_back(ranges, known)
        for name in self.wanted:
            if name not in self.made:
                self.accumulate(name, tuple(f"x{at}" for at in range(len(sizes.shape(name)))),
                                Literal(0.0), ())  # fmt: skip
        return self.comprehension(given)

    def comprehension(self, given: Sequence[Declaration]) -> Comprehension:
        """Forward and backward statements as one."""
        sizes = self.inference.statements[0].work.sizes if self.inference.statements else {}
        inputs = [replace(tensor, extents=self.inference.shape(tensor.name))
                  for tensor in self.forward.inputs if tensor.name not in sizes]  # fmt: skip

        def fix(term: Term) -> Term:
            match term:
                case Variable(name) | Element(name, ()) if name in sizes:
                    return Literal(sizes[name])
                case AxisExtent(tensor, axis):
                    return Literal(self.inference.shape(tensor)[axis])
            return term

        forward = [
            replace(rewrite_statement(ranges.statement, fix), ranges=_ranges(ranges), exists=())
            for ranges in self.inference.statements
        ]
        backward = [rewrite_statement(statement, fix) for statement in self.statements]
        return Comprehension(
            f"{self.forward.name}_gradients", (*inputs, *given), tuple(map(_gradient, self.wanted)),
            (*forward, *backward),
        )  # fmt: skip

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
        """What a statement adds to the gradients of the tensors that it reads."""
        statement = ranges.statement
        own = Element(statement.tensor, tuple(map(Variable, statement.index)))
        seed: Term = replace(own, tensor=_gradient(statement.tensor))
        match statement.operator:
            case "max=" | "min=":
                seed = _of("select", _of("equal", statement.value, own), seed, 0.0)
                read = names_in(statement.value)
                unread = [name for name in ranges.reductions if name not in read]
                bounds = [ranges.bounds(name) for name in unread]  # of equal extremes
                seed = _product(seed, Literal(1 / prod(end - first for first, end in bounds)))
            case "*=":
                seed = _of("div", _of("mul", seed, own), statement.value)
            case "argmin=" | "argmax=":
                return
        for element, slope, chosen in self.slopes(statement.value, seed, ()):
            if element.tensor not in known:
                continue
            if element.tensor == statement.tensor:
                raise self.refusal(element.at, f"{statement.tensor} is read where it changes")
            _Pull(self, ranges, element, slope).add(chosen)

    def slopes(self, term: Term, seed: Term, chosen: Choices) -> Iterator[Slope]:
        """The elements that a term reads as real numbers, and the gradient of each."""
        match term:
            case Element(tensor, _) if is_real(self.types[tensor]):
                yield term, seed, chosen
            case Conversion(dtype, value) if is_real(dtype):
                yield from self.slopes(value, seed, chosen)
            case Operation("select", (condition, body, otherwise)):
                yield from self.slopes(body, seed, (*chosen, (condition, True)))
                yield from self.slopes(otherwise, seed, (*chosen, (condition, False)))
            case Operation(_, arguments):
                for part, slope in zip(arguments, self.rule(term), strict=False):
                    if any(isinstance(inner, Element) for inner in walk_terms(part)):
                        yield from self.slopes(part, _product(seed, slope), chosen)

    def rule(self, term: Operation) -> tuple[Term, ...]:
        """The derivatives of a function by its arguments."""
        if term.function in _SLOPES:
            return (_SLOPES[term.function](term.arguments[0]),)
        if term.function in _PAIRS:
            return _PAIRS[term.function](*term.arguments)
        if term.function in ("equal", "not_equal", "less", "greater", "and", "or", "not"):
            return ()
        raise self.refusal(term.at, f"{term.function} has no rule")

    def accumulate(
        self, tensor: str, index: tuple[str, ...], value: Term, ranges: tuple[IndexRange, ...]
    ) -> None:
        """``d_tensor(index) += value``."""
        extents = self.inference.shape(tensor)
        bounds = tuple(
            IndexRange(name, Literal(0), Literal(size))
            for name, size in zip(index, extents, strict=True)
        )
        self.statements.append(Assignment(
            _gradient(tensor), index, "+=", tensor not in self.made, value, (*bounds, *ranges)
        ))  # fmt: skip
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
                value = _of("select", self.put(condition), *ends)
        if self.matches is not None:
            value = _of("select", self.put(self.matches), value, 0.0)
        if self.inside is not None:
            value = _of("select", self.put(self.inside), value, 0.0)
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
            same = _of("equal", Variable(name), subscript)
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
        self.inside = _both(self.inside, _of("greater_equal", self.places[iterator], first))
        self.inside = _both(self.inside, _of("less", self.places[iterator], end))
        return name


def _gradient(tensor: str) -> str:
    return f"d_{tensor}"


def _both(first: Term | None, second: Term) -> Term:
    return second if first is None else _of("and", first, second)


def _product(seed: Term, slope: Term) -> Term:
    """``seed * slope``."""
    if isinstance(slope, Literal) and abs(slope.value) == 1:
        return seed if slope.value == 1 else _of("neg", seed)
    if isinstance(slope, Operation) and slope.function == "reciprocal":
        return _of("div", seed, *slope.arguments)  # in the seed's type, also by whole numbers
    return _of("mul", seed, slope)


def _term(form: Affine) -> Term:
    """A linear form as a term."""
    term: Term = Literal(form.const)
    for name, coef in form.terms:
        term = _of("add", term, _of("mul", coef, Variable(name)))
    return term


def _ranges(ranges: StatementRanges) -> tuple[IndexRange, ...]:
    """The ranges of all iterators as numbers."""
    return tuple(IndexRange(name, *map(Literal, ranges.bounds(name))) for name in ranges.iterators)
