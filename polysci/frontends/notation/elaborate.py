"""A comprehension without calls of others, whose names all mean something, and element types."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from polysci.errors import PolysciError
from polysci.frontends.notation.parser import BUILTINS, apply_builtin, error_at
from polysci.frontends.notation.syntax import (
    Assignment,
    AxisExtent,
    Comprehension,
    Conversion,
    Declaration,
    Invocation,
    Literal,
    Operation,
    Symbol,
    TensorElement,
    Term,
    names_in,
    rewrite_statement,
    walk_terms,
)
from polysci.loop_ir.functions import kind_of_type
from polysci.numerics.scalar_functions import is_predicate, template
from polysci.text.names import suggest


@dataclass(frozen=True, slots=True)
class Contract:
    """Promise of a call: ``tensor`` is as ``declaration`` says; ``sizes`` are its variables."""

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
        """Return an error that points into the text."""
        return error_at(self.comprehension.text, at, what, rule)


def elaborate(
    comprehensions: Sequence[Comprehension], name: str = "", callers: tuple[str, ...] = ()
) -> Elaborated:
    """Return the comprehension ``name``, by default the last, with the ones it calls inlined.

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
        if statement.operator == "=":
            names = names_in(statement.value, *statement.exists)
            summed = [name for name in names if name not in (*statement.index, *self.shapes)]
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
        """Return the iterators that stand in subscripts."""
        terms = [part for term in (statement.value, *statement.exists) for part in walk_terms(term)]
        subscripts = [
            part for term in terms if isinstance(term, TensorElement) for part in term.index
        ]
        return tuple(name for name in names_in(*subscripts) if name not in self.shapes)

    def resolve(self, term: Term) -> Term:
        """Return a term with scalars as elements. Raises SpecError for a tensor that is none."""
        match term:
            case Symbol(name, at) if name in self.ranks:
                if self.ranks[name]:
                    raise self.error(at, f"{name} has {self.ranks[name]} axes: write {name}(...)")
                return TensorElement(name, (), at)
            case TensorElement(name, index, at) if name in BUILTINS and name not in self.ranks:
                return apply_builtin(self.whole.text, name, index, at)
            case TensorElement(name, index, at):
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
        """Add the statements of another comprehension, with other names for its tensors."""
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
            self.statements.append(_rename(statement, names, sizes))
        self.ranks |= {names[name]: rank for name, rank in inner.ranks.items()}


def _as_call(
    statement: Assignment | Invocation, functions: Container[str], ranks: Mapping[str, int]
) -> Invocation | None:
    """Return ``x = f(y)`` as a call where f is a comprehension or y a tensor, else None."""
    if isinstance(statement, Invocation):
        return statement
    value, plain = statement.value, statement.operator == "=" and not statement.index
    if not plain or not isinstance(value, TensorElement) or value.tensor in ranks:
        return None
    names = [term.name for term in value.index if isinstance(term, Symbol)]
    if len(names) < len(value.index):
        return None
    if value.tensor not in functions and not any(ranks.get(name) for name in names):
        return None
    return Invocation((statement.tensor,), value.tensor, tuple(names), value.at)


def _rename(
    statement: Assignment, names: Mapping[str, str], sizes: Mapping[str, AxisExtent]
) -> Assignment:
    def change(term: Term) -> Term:
        match term:
            case Symbol(name, _) if name in sizes:
                return sizes[name]
            case TensorElement(name, _, _) | AxisExtent(name, _, _):
                return replace(term, tensor=names[name])
        return term

    return replace(rewrite_statement(statement, change), tensor=names[statement.tensor])


_REALS = ("float16", "bf16", "float32", "float64")
# By how wide the numbers are that types are computed with; narrower whole numbers are as int32.
_WIDTHS = ("int32", "int64", "uint64", "float32", "float64")
_ALIKE = {"float16": "float32", "bf16": "float32", "uint32": "int64"}
_EXACT = {"float16": 2**11, "bf16": 2**8}  # up to which they have all whole numbers
_PLACES = ("argmin", "argmax")


def promote(types: Iterable[str]) -> str:
    """Return the type in which values of such types are computed with together."""
    wide = [_ALIKE.get(dtype, dtype) for dtype in types]
    return max(
        (dtype if dtype in _WIDTHS else "int32" for dtype in wide),
        key=_WIDTHS.index, default="int32",
    )  # fmt: skip


def is_real(dtype: str) -> bool:
    return dtype in _REALS


def _holds(dtype: str, value: float) -> bool:
    """Tell whether a whole number is a value of a type."""
    if dtype in _EXACT:
        return abs(value) <= _EXACT[dtype]
    if is_real(dtype) or dtype == "bool":
        return is_real(dtype) or value in (0, 1)
    return bool(np.iinfo(dtype).min <= value <= np.iinfo(dtype).max)


def type_of(term: Term, types: Mapping[str, str]) -> str:
    """Return the element type of a value; that of a number next to other values is theirs.

    Values narrower than 32 bits are computed with as int32, or as float32; iterators and extents
    are int64. Functions of real numbers make real numbers of whole ones.
    """
    match term:
        case Literal(value):
            whole = "int32" if _holds("int32", value) else "int64"
            return "float32" if isinstance(value, float) else whole
        case Symbol() | AxisExtent():
            return "int64"
        case TensorElement(tensor):
            return types[tensor]
        case Conversion(dtype):
            return dtype
        case Operation(function) if is_predicate(function):
            return "bool"
        case Operation(function, arguments):
            values = arguments[1:] if function == "select" else arguments
            return argument_type(function, values, types)


def argument_type(function: str, arguments: Iterable[Term], types: Mapping[str, str]) -> str:
    """Return the type in which a function takes its arguments."""
    numbers = [part.value for part in arguments if isinstance(part, Literal)]
    real = any(isinstance(value, float) for value in numbers)
    long = {"int64" for value in numbers if not real and not _holds("int32", value)}
    parts = (part for part in arguments if not isinstance(part, Literal))
    known = [*long, *(type_of(part, types) for part in parts)]
    alike = function == "select" and len({*known}) == 1 and not real
    if alike and all(_holds(known[0], value) for value in numbers):
        return known[0]
    dtype = promote(known)
    if real and not is_real(dtype):
        return "float32"
    lacks = template(function, kind_of_type(dtype)) is None
    return "float32" if lacks and not is_real(dtype) else dtype


def result_type(statement: Assignment, types: Mapping[str, str]) -> str:
    """Return the element type of a statement's target; one that exists keeps its own."""
    if statement.tensor in types:
        return types[statement.tensor]
    dtype = type_of(statement.value, types)
    if statement.operator.rstrip("=") in _PLACES:
        return "int32"
    return promote([dtype]) if statement.operator in ("+=", "*=") else dtype


def combination_type(statement: Assignment, types: Mapping[str, str]) -> str:
    """Return the type in which values are combined: the target's, unless that holds fewer."""
    own, target = type_of(statement.value, types), types[statement.tensor]
    counts = target == "bool" and statement.operator in ("+=", "*=")
    same = statement.operator == "=" or (own == target and not counts)
    return target if same else promote((own, target))


def tensor_types(comprehension: Comprehension) -> dict[str, str]:
    """Return the element type of every tensor, by its name."""
    types = {declaration.name: declaration.dtype for declaration in comprehension.inputs}
    for statement in comprehension.assignments:
        types[statement.tensor] = result_type(statement, types)
    return types
