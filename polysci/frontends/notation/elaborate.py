"""A comprehension without calls of others, whose names all mean something."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from polysci.errors import PolysciError
from polysci.frontends.notation.parser import BUILTINS, apply_builtin, error_at
from polysci.frontends.notation.syntax import (
    Assignment,
    AxisExtent,
    Comprehension,
    Declaration,
    Element,
    Invocation,
    Term,
    Variable,
    names_in,
    rewrite_statement,
    walk_terms,
)
from polysci.text.suggestions import suggest


@dataclass(frozen=True, slots=True)
class Contract:
    """What a call promises: ``tensor`` is as ``declaration`` says; ``sizes`` are its variables."""

    tensor: str
    declaration: Declaration
    sizes: Mapping[str, AxisExtent]
    at: int


@dataclass(frozen=True, slots=True)
class Elaborated:
    """Assignments alone, of tensors with ``ranks`` axes; what the calls among them promise.

    Scalars are elements without subscripts.
    """

    comprehension: Comprehension
    ranks: Mapping[str, int]
    contracts: tuple[Contract, ...] = ()

    @property
    def statements(self) -> tuple[Assignment, ...]:
        return self.comprehension.assignments

    def error(self, at: int, what: str, rule: str = "") -> PolysciError:
        """An error that points into the text."""
        return error_at(self.comprehension.text, at, what, rule)


def elaborate(
    comprehensions: Sequence[Comprehension], name: str = "", callers: tuple[str, ...] = ()
) -> Elaborated:
    """The comprehension called ``name``, by default the last, with those that it calls inside.

    Raises SpecError, with a caret, for names that mean nothing and calls that do not fit.
    """
    known = {comprehension.name: comprehension for comprehension in comprehensions}
    whole = known[name] if name else comprehensions[-1]
    work = _Elaboration(whole, comprehensions, (*callers, whole.name))
    for declaration in whole.inputs:
        if declaration.name in (*work.ranks, *work.shapes):
            raise work.error(declaration.at, f"{declaration.name} is repeated")
        work.ranks[declaration.name] = len(declaration.extents)
    for statement in whole.statements:
        work.add(statement, known)
    for output in whole.outputs:
        if output not in work.ranks:
            known_names = suggest(output, work.ranks)
            raise work.error(whole.at, f"no statement makes {output}{known_names}")
    flat = replace(whole, statements=tuple(work.statements))
    return Elaborated(flat, work.ranks, tuple(work.contracts))


@dataclass(slots=True)
class _Elaboration:
    """The statements so far, and the axes of the tensors that they know."""

    whole: Comprehension
    comprehensions: Sequence[Comprehension]
    callers: tuple[str, ...]
    ranks: dict[str, int] = field(default_factory=dict)
    statements: list[Assignment] = field(default_factory=list)
    contracts: list[Contract] = field(default_factory=list)

    def error(self, at: int, what: str, rule: str = "") -> PolysciError:
        return error_at(self.whole.text, at, what, rule)

    def add(self, statement: Assignment | Invocation, known: Mapping[str, Comprehension]) -> None:
        call = _as_call(statement, {*known} - {*self.ranks}, self.ranks)
        if call is not None:
            self.inline(call, known)
            return
        assert isinstance(statement, Assignment)
        rank = self.ranks.get(statement.tensor, len(statement.index))
        if rank != len(statement.index):
            raise self.error(
                statement.at, f"{statement.tensor} has {rank} axes, not {len(statement.index)}"
            )
        if statement.tensor in self.shapes:
            raise self.error(statement.at, f"{statement.tensor} is a shape variable")
        if not statement.initialise and statement.tensor not in self.ranks:
            raise self.error(
                statement.at, f"{statement.tensor} has no values before {statement.operator}",
                f"Write {statement.operator}! to begin with the first value, or = before it.",
            )  # fmt: skip
        statement = rewrite_statement(statement, self.resolve)
        iterators = {*statement.index, *(bound.name for bound in statement.ranges)}
        iterators |= {*self.subscripts(statement)}
        clash = [name for name in iterators if name in (*self.ranks, *self.shapes)]
        if clash:
            what = "a tensor before" if clash[0] in self.ranks else "a shape variable"
            raise self.error(statement.at, f"{clash[0]} is an iterator here, and {what}")
        every = names_in(statement.value, *statement.exists)
        if statement.operator == "=":
            summed = [name for name in every if name not in (*statement.index, *self.shapes)]
            if summed:
                raise self.error(
                    statement.at, f"{summed[0]} is not a subscript of {statement.tensor}",
                    f"Write +=!, max=! or another reduction over {summed[0]}.",
                )  # fmt: skip
        self.ranks[statement.tensor] = rank
        self.statements.append(statement)

    @property
    def shapes(self) -> tuple[str, ...]:
        return self.whole.shape_variables

    def subscripts(self, statement: Assignment) -> tuple[str, ...]:
        """Iterators that stand in subscripts."""
        terms = [
            part
            for term in (statement.value, *statement.exists)
            for element in walk_terms(term) if isinstance(element, Element)
            for part in element.index
        ]  # fmt: skip
        return tuple(name for name in names_in(*terms) if name not in self.shapes)

    def resolve(self, term: Term) -> Term:
        """A term with scalars as elements. Raises SpecError for a tensor that is none."""
        match term:
            case Variable(name, at) if name in self.ranks:
                if self.ranks[name]:
                    raise self.error(at, f"{name} has {self.ranks[name]} axes: write {name}(...)")
                return Element(name, (), at)
            case Element(name, index, at) if name in BUILTINS and name not in self.ranks:
                return apply_builtin(self.whole.text, name, index, at)
            case Element(name, index, at):
                if name not in self.ranks:
                    raise self.error(
                        at, f"{name} is neither a tensor nor a function{suggest(name, self.ranks)}"
                    )
                if self.ranks[name] != len(index):
                    raise self.error(at, f"{name} has {self.ranks[name]} axes, not {len(index)}")
            case AxisExtent(name, axis, at):
                if not axis < self.ranks.get(name, 0):
                    raise self.error(at, f"{name} has no axis {axis}")
        return term

    def inline(self, call: Invocation, known: Mapping[str, Comprehension]) -> None:
        """The statements of another comprehension, with other names for its tensors."""
        if call.function not in known or call.function in self.callers:
            why = "calls itself" if call.function in known else "is no comprehension before this"
            hint = "" if call.function in known else suggest(call.function, known)
            raise self.error(call.at, f"{call.function} {why}{hint}")
        inner = elaborate(self.comprehensions, call.function, self.callers)
        called = inner.comprehension
        for what, own, other in (
            ("inputs", called.inputs, call.arguments), ("outputs", called.outputs, call.targets)
        ):  # fmt: skip
            if len(own) != len(other):
                raise self.error(call.at, f"{called.name} has {len(own)} {what}, not {len(other)}")
        names = dict(zip(called.outputs, call.targets, strict=True))
        names |= {t.name: x for t, x in zip(called.inputs, call.arguments, strict=True)}
        for name in inner.ranks:
            names.setdefault(name, f"{call.function}_{name}_{len(self.statements)}")
        sizes = dict[str, AxisExtent]()
        for tensor, argument in zip(called.inputs, call.arguments, strict=True):
            if self.ranks.get(argument) != len(tensor.extents):
                raise self.error(
                    call.at, f"{argument}: expected a tensor of {len(tensor.extents)} axes",
                    f"{called.name} declares {tensor}",
                )  # fmt: skip
            for axis, extent in enumerate(tensor.extents):
                if isinstance(extent, str):
                    sizes.setdefault(extent, AxisExtent(argument, axis, call.at))
            self.contracts.append(Contract(argument, tensor, sizes, call.at))
        self.contracts += (replace(
            promise, tensor=names[promise.tensor],
            sizes={key: replace(size, tensor=names[size.tensor])
                   for key, size in promise.sizes.items()},
        ) for promise in inner.contracts)  # fmt: skip
        for statement in inner.statements:
            self.statements.append(_renamed(statement, names, sizes))
        self.ranks |= {names[name]: rank for name, rank in inner.ranks.items()}


def _as_call(
    statement: Assignment | Invocation, functions: Container[str], ranks: Mapping[str, int]
) -> Invocation | None:
    """``x = f(y)``, where f is a comprehension or y a tensor, as a call."""
    if isinstance(statement, Invocation):
        return statement
    value, plain = statement.value, statement.operator == "=" and not statement.index
    if not plain or not isinstance(value, Element) or value.tensor in ranks:
        return None
    names = [term.name for term in value.index if isinstance(term, Variable)]
    if len(names) < len(value.index):
        return None
    if value.tensor not in functions and not any(ranks.get(name) for name in names):
        return None
    return Invocation((statement.tensor,), value.tensor, tuple(names), value.at)


def _renamed(
    statement: Assignment, names: Mapping[str, str], sizes: Mapping[str, AxisExtent]
) -> Assignment:
    def change(term: Term) -> Term:
        match term:
            case Variable(name, _) if name in sizes:
                return sizes[name]
            case Element(name, _, _) | AxisExtent(name, _, _):
                return replace(term, tensor=names[name])
        return term

    return replace(rewrite_statement(statement, change), tensor=names[statement.tensor])
